"""What each claim is: where a paper makes it, in our words, the rule that judges it, and what would have refuted it.

A key is the figure and a word. "ours" stands for what no paper claims: theory checked by us, and settings of our own.
A claim about several datasets or settings is "partly" reproduced where its rule holds for some of them.
"""

from __future__ import annotations

from typing import NamedTuple

OURS = "ours"


class Statement(NamedTuple):
    source: str  # section, figure or theorem of the paper; begins with OURS if the paper does not say so
    claim: str
    rule: str  # when it counts as reproduced
    refuted_if: str


_BEHIND = "FedRes is .01 or more behind on all of them"
_NEAR = "accuracy of FedRes at least that of the better baseline − .01, on each dataset"
_ROBUST = "less than .03 of the accuracy is lost from delay 0 to 200, on each dataset"
_LOST = ".03 or more is lost on all of them"
_ARRIVAL = "ours; the paper's clients and server learn aligned"
_SECTION_7 = "section VII, figure 1"
_LOG = "dR/d ln T in the last factor of 8 of T is below 1.68 times that in the factor before: nearer to ln T than to √T"

STATEMENTS = {
    "fedres-1/near": Statement(
        "figure 1, section 6.3",
        "With 50 clients FedRes is always about as good as the better baseline.",
        _NEAR,
        _BEHIND,
    ),
    "fedres-1/similar": Statement(
        "section 6.4, of figure 1",
        "Central is better than Independent on mnist, satimage, sensorless and usps.",
        "ahead by more than one standard error, on each dataset",
        "it is ahead on none",
    ),
    "fedres-1/different": Statement(
        "section 6.4, of figure 1",
        "Independent is better than Central on letter, pendigits, shuttle and covtype.",
        "ahead by more than one standard error, on each dataset",
        "it is ahead on none",
    ),
    "fedres-2/near": Statement(
        "figure 2, section 6.3",
        "With 10 clients FedRes is always about as good as the better baseline.",
        _NEAR,
        _BEHIND,
    ),
    "fedres-2/similar": Statement(
        "section 6.4, of figure 2",
        "Central is better than Independent on mnist, satimage, sensorless and usps.",
        "ahead by more than one standard error, on each dataset",
        "it is ahead on none",
    ),
    "fedres-2/different": Statement(
        "section 6.4, of figure 2",
        "Independent is better than Central on letter, pendigits, shuttle and covtype.",
        "ahead by more than one standard error, on each dataset",
        "it is ahead on none",
    ),
    "fedres-3/comparable": Statement(
        "section 6.4, of all experiments",
        "FedRes is comparable with the better baseline.",
        _NEAR + ", at most clients",
        _BEHIND,
    ),
    "fedres-3/clients": Statement(
        "figure 3, section 6.4",
        "More clients make FedRes better on sensorless and mnist.",
        "more accurate at the most clients than at the fewest by more than one standard error, on each dataset",
        "on neither",
    ),
    "fedres-4/comparable": Statement(
        "section 6.4, of all experiments",
        "FedRes is comparable with the better baseline.",
        _NEAR + ", at most clients",
        _BEHIND,
    ),
    "fedres-4/clients": Statement(
        "figure 4, section 6.4",
        "More clients make FedRes little better on letter and pendigits.",
        "the accuracies at most and at fewest clients differ by less than .02, on each dataset",
        "they differ by .02 or more on both",
    ),
    "fedres-5/modest": Statement(
        "figure 5, section 6.5",
        "Delay costs FedRes a modest part of its accuracy on letter and pendigits.",
        _ROBUST,
        _LOST,
    ),
    "fedres-5/on-arrival": Statement(
        _ARRIVAL, "The same where both sides learn on arrival, on letter and pendigits.", _ROBUST, _LOST
    ),
    "fedres-8/comparable": Statement(
        "section 6.4, of all experiments",
        "FedRes is comparable with the better baseline.",
        _NEAR + ", at most clients",
        _BEHIND,
    ),
    "fedres-9/robust": Statement(
        "appendix E.2, of figure 9", "FedRes is robust to delay on mnist, satimage and usps.", _ROBUST, _LOST
    ),
    "fedres-9/sensorless": Statement(
        "appendix E.2, of figure 9",
        "On sensorless, FedRes and Central both lose accuracy with delay, and FedRes loses more.",
        "FedRes loses more than Central from delay 0 to 200, and both lose more than one standard error",
        "one of them loses nothing, or Central loses more",
    ),
    "fedres-9/on-arrival": Statement(
        _ARRIVAL, "Where both sides learn on arrival, delay costs little on all four datasets.", _ROBUST, _LOST
    ),
    "fedres-10/worse": Statement(
        "appendix E.2, of figure 10",
        "Under a moderate delay FedRes can be worse than Independent without any, on letter, pendigits and shuttle.",
        "behind Independent by more than one standard error at delay 80, on each dataset",
        "behind on none of them",
    ),
    "fedres-10/on-arrival": Statement(
        _ARRIVAL, "Where both sides learn on arrival, delay costs little on all four datasets.", _ROBUST, _LOST
    ),
    "fedres-11/overcome": Statement(
        "appendix E.3, of figure 11",
        "At delay 20, what delay costs FedRes is typically overcome as the number of clients grows.",
        "its lead over the better baseline is larger at the most clients than at the fewest, on each dataset",
        "on none of them",
    ),
    "fedres-12/overcome": Statement(
        "appendix E.3, of figure 12",
        "At delay 80, what delay costs FedRes is typically overcome as the number of clients grows.",
        "its lead over the better baseline is larger at the most clients than at the fewest, on each dataset",
        "on none of them",
    ),
    "beyond/level": Statement(
        OURS,
        "With all features on the client, learning on arrival and the mean with a model that learns alone, FedRes is "
        "at least as good as Independent and Central (single models at VW's rate; fair.md compares like with like).",
        "at least the better one's accuracy − 1 standard error, in each of 48 cells",
        "in none",
    ),
    "fedres-6/fictitious": Statement(
        "figure 6, appendix C.3",
        "Fictitious play is far from optimal in its average loss.",
        "at the last T at least 5 times the loss of FedRes.SGD and of FedRes.ERM",
        "less than 5 times both",
    ),
    "fedres-6/step": Statement(
        "appendix C.2",
        "FedRes.SGD learns with η = 1.0, which is called an arbitrary choice.",
        "no loss above 100 in the first 10 rounds, in any of 10 rollouts",
        "a loss above 100 in all of them",
    ),
    "fedres-7/optimum": Statement(
        "figure 7, appendix C.3",
        "FedRes.SGD and FedRes.ERM find the optimum, fictitious play gets stuck before it.",
        "at the last T within .1 of w_* for the first two, and not for the third",
        "the other way round for all three",
    ),
    "fedomd-1-left/period": Statement(
        _SECTION_7 + " left",
        "A larger period τ makes regret larger.",
        "final R rises from each τ to the next by more than 2 standard errors",
        "from none to the next",
    ),
    "fedomd-1-left/log": Statement(_SECTION_7, "R_T grows with the logarithm of T, for every τ.", _LOG, "for no τ"),
    "fedomd-1-left/slope": Statement(
        "ours; from the losses of section VII",
        "dR/d ln T = ½(4 + 5/m) = 2.125 at τ = 1.",
        "within 5% and 2 standard errors",
        "farther away",
    ),
    "fedomd-1-right/clients": Statement(
        _SECTION_7 + " right",
        "Fewer participating clients K make regret larger (τ = 20).",
        "final R rises from each K to the next smaller one by more than 2 standard errors",
        "from none to the next",
    ),
    "fedomd-1-right/log": Statement(_SECTION_7, "R_T grows with the logarithm of T, for every K.", _LOG, "for no K"),
    "fedomd-rate/slope": Statement(
        "ours; theorem 1 bounds it and the paper runs no such experiment",
        "Regret of convex losses grows with √T.",
        "log-log slope within [.4, .55] (theorem 1 forbids more than ½ for ever)",
        "a slope outside",
    ),
    "fedomd-rate/bound": Statement(
        "ours; theorem 1", "Regret stays under the bound of theorem 1.", "in each run", "a run above it"
    ),
    "fedsea-speedup/speedup": Statement(
        "ours; remark 2 of theorem 1, and the paper has no experiments",
        "Regret falls as 1/√M while nothing drifts (τ = 1, K̄² = 0).",
        "log-log slope in M within −.5 ± .05",
        "a slope outside",
    ),
    "fedsea-speedup/temporal": Statement(
        "ours; remark 2 of theorem 1",
        "Temporal variation takes the speed-up away (K̄² = 18).",
        "log-log slope in M above −.1",
        "−.1 or steeper",
    ),
    "fedsea-speedup/rare": Statement(
        "ours; remark 3 of theorem 1",
        "Rare averages (τ = 5) take the speed-up away beyond a few clients.",
        "log-log slope from M = 8 on above −.25, and at the most clients over twice the regret of τ = 1",
        "neither",
    ),
    "fedsea-speedup/bound": Statement(
        "ours; theorem 1, with constants derived here",
        "Mean regret stays under the bound of theorem 1.",
        "for each setting",
        "a setting above it",
    ),
    "ofediq-2/best": Statement(
        "figure 2, section 5",
        "At a fixed p/L a transmission period of L = 1 is the best choice.",
        "every larger L loses accuracy at the last t, by more than 2 standard errors",
        "none does",
    ),
    "ofediq-2/severe": Statement(
        "section 5, of figure 2",
        "The loss becomes more severe as L increases.",
        "it rises from each L to the next by more than 2 standard errors",
        "from none to the next",
    ),
    "ofediq-2/shrinks": Statement(
        "section 5, of figure 2",
        "The loss shrinks as t grows (the paper says to almost nothing, for t beyond ours).",
        "at the last t smaller than at a third of it, by more than 2 standard errors",
        "not smaller",
    ),
    "ofediq-3/blocks": Statement(
        "figure 3, section 5",
        "The optimised OFedIQ(1, 0.086, 3, 777) beats OFedIQ(1, 0.086, 7, 1) at the same cost (ours has b = 780).",
        "more accurate at the last t by more than 2 standard errors",
        "not ahead",
    ),
    "ofediq-3/ofedavg": Statement(
        "figure 3, section 5",
        "It is better than OFedAvg(0.01) at the same cost.",
        "more accurate at the last t by more than 2 standard errors",
        "not ahead",
    ),
    "ofediq-4/almost": Statement(
        "figure 4, section 5",
        "With 99% fewer bits OFedIQ almost achieves FedOGD's performance.",
        "at most 1.5 points of accuracy, or 5% of the MSE, behind, on each dataset",
        "farther behind on all",
    ),
    "ofediq-4/benchmarks": Statement(
        "figure 4, section 5",
        "With 99% fewer bits OFedIQ outperforms OFedAvg and FedOMD (on air quality it ties).",
        "ahead of the better one by more than 2 standard errors, or not behind on air quality, on each dataset",
        "on none",
    ),
    "ofediq-4/fedomd": Statement(
        "section 5, of figure 4",
        "With 99% fewer bits FedOMD performs very poorly, as it makes few global updates.",
        "behind OFedAvg by more than 2 standard errors, on each dataset",
        "on none",
    ),
    "ofediq-4/unnecessary": Statement(
        "section 5, of figure 4",
        "With 90% fewer bits quantization is unnecessary: OFedAvg performs as OFedIQ does.",
        "within 0.5 points of accuracy, or 2% of the MSE, on each dataset",
        "farther apart on all",
    ),
    "dynfed-1a/msd": Statement(
        "figure 1a, section IV",
        "A larger μ ends at a larger MSD.",
        "it rises from each μ to the next by more than 2 standard errors",
        "from none to the next",
    ),
    "dynfed-1a/speed": Statement(
        "figure 1a, section IV",
        "A larger μ converges faster.",
        "the iterations to halve the MSD fall from each μ to the next by more than 2 standard errors",
        "from none to the next",
    ),
    "dynfed-1b/inside": Statement(
        "figure 1b, section IV",
        "Under drift there is a best μ inside the range.",
        "the smallest and the largest μ are worse than the best by more than 2 standard errors",
        "neither is",
    ),
    "dynfed-1b/best": Statement("figure 1b, section IV", "That μ is 0.1.", "the best of our μ is 0.1", "another one"),
    "dynfed-1c/msd": Statement(
        "figure 1c, section IV",
        "The MSD rises with σ_c².",
        "from each σ_c² to the next by more than 2 standard errors",
        "from none to the next",
    ),
    "dynfed-1c/speed": Statement(
        "figure 1c, section IV",
        "σ_c² does not affect the rate of convergence.",
        "the iterations to halve the MSD at the least and at the largest σ_c² differ by at most 2 standard errors",
        "by more",
    ),
    "dynfed-1d/msd": Statement(
        "figure 1d, section IV",
        "The MSD rises with σ_q².",
        "from each σ_q² to the next by more than 2 standard errors",
        "from none to the next",
    ),
    "dynfed-1d/speed": Statement(
        "figure 1d, section IV",
        "σ_q² does not affect the convergence.",
        "the iterations to halve the MSD at the least and at the largest σ_q² differ by at most 2 standard errors",
        "by more",
    ),
}
