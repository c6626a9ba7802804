"""The numbers of ``residual-kalman``. None needs tuning by users; rewards count as shares of their range.

Kernels are compiled with them, and are compiled again after a change.
"""

from zlib import crc32

START_EVENTS = 16  # decided uniformly; their features determine the core and the scales
CHOICE_EVENTS = 1024  # the first, learned again to choose the field of actions that explains most
MOST_KEPT = 1 << 17  # features of events kept for that: large events are learned again sooner
CHOICE_FIELDS = 8  # tried fields: the first that occur
FIRST_VALUES = 16  # of a number, which determine its scale
CORE_COUNT, CORE_SIZE = 2, 64  # core: not 0 in at least 2 contexts of the start; at most 64 with the constant
LEAST_CONSTANT = 0.5  # of the input of a context's constant: a quarter of the prior, however long contexts are
OWN_SIZE = 20  # coordinates of a personal block: the leading directions of the core
FIRST_SHARED_LOG_TAU = 0.0  # log 1: prior variance of shared core weights; contexts have a mean squared length of 1
FIRST_LOG_TAU = -4.605170185988091  # log 0.01: prior variance of personal and tail weights before anything is learned
FIRST_PAIR_LOG_TAU = 2 * FIRST_LOG_TAU  # of weights of two features of an action together: most pairs mean nothing
LOG_TAU_RATE, LEAST_LOG_TAU, MOST_LOG_TAU = 0.5, -14.0, 2.0
CORE_TAU_START = 256  # events after which τ of shared core weights and drift are learned: before, slopes are noise
CONTEXT_TAU_EVENTS = 16  # for each block, after which that of the context's weights is learned, if this is sooner
REBASE = 0.5  # how far log τ of a field moves before a shared block, when learned next, takes it as its prior
LOG_DRIFT_RATE, LEAST_LOG_DRIFT, MOST_LOG_DRIFT = 2.0, -14.0, -4.0  # of the share of a covariance that is forgotten
DRIFT_FORGETS = (
    0.002  # share of the squared slopes by log φ that an event forgets, so that φ falls again after a change
)
IDLE_DRIFT = 0.05  # drift that has added up when the blocks that were not learned meanwhile take it over
FIRST_NOISE, LEAST_NOISE, MOST_NOISE, LEAST_NOISE_RATE = 0.1, 0.001, 1.0, 0.002
CONTEXT_UNIT, ACTION_UNIT = 3.0, 1.0  # of a number, in medians: below its unit, its logarithm is nearly linear
NUMBER_LIMIT = 5.0  # of scaled numbers
JACOBI_SWEEPS = 6
MAX_BASES = 24  # the basis is renewed at 32, 64, 128, ... events
MAX_FIELDS = 32  # with a prior of their own; all others share the last
MOST_PAIRED = 32  # features of an action, the first ones, whose pairs have weights
MAX_SCALES = 1_600  # numbers with a scale of their own; others count by their sign
MAX_BLOCKS = 512  # shared, with dense covariances; once they are all in use, the least recently learned makes room
TAIL_BITS = 16  # tail weights: 2^16 pairs of numbers, indexed by a hash
MOST_OWN_VARIANCE = 0.25  # of what a user's rewards, between 0 and 1, may differ by: no such number has a larger one
ID_FIELD = crc32(b"_id")  # the field of actions' ids
ACTION_KEYS = 0x9E3779B9  # sets hashes of actions' features apart from those of contexts
OWN_BYTES = 8192  # of a personal model, half of them for slots; in each half the least recently learned makes room
HEAD, SLOT_HEAD = 4, 3  # words of a personal model before its slots, and of a slot before its numbers
BIAS_WORDS = 4  # of a personal bias


def own_slots(size: int, n_bytes: int = OWN_BYTES) -> int:
    """Return for how many blocks a personal model of ``n_bytes`` has room for ``size`` directions: in half of them.

    >>> own_slots(20), own_slots(5)
    (23, 78)
    """
    return max(1, (n_bytes // 2 - 4 * HEAD) // (4 * (SLOT_HEAD + 2 * size)))


def own_biases(n_bytes: int = OWN_BYTES) -> int:
    """Return for how many features a personal model of ``n_bytes`` has room for a bias: in the other half.

    >>> own_biases()
    256
    """
    return max(1, n_bytes // 2 // (4 * BIAS_WORDS))
