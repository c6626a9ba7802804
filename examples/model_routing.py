"""Choose a language model for each prompt: python examples/model_routing.py [http://127.0.0.1:8000]

Start a service first: fedres serve. Prompts, answers and judgments are generated, so nothing is sent to a language
model. The large model is best at reasoning, the coder at code, and the small one is good enough for the rest at a
fortieth of the price. A judgment comes 20 prompts after its answer, and one in ten never comes.
"""

import random
import sys
import uuid
from collections import deque

from fedres.client import Client

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
PRICES = {"small": 0.25, "large": 10.0, "coder": 2.0}  # dollars per million tokens
MODELS = [{"id": name, "features": {"price": price}} for name, price in PRICES.items()]
QUALITY = {  # of the answers of each model, by the kind of prompt
    "chat": {"small": 0.80, "large": 0.85, "coder": 0.60},
    "code": {"small": 0.40, "large": 0.75, "coder": 0.85},
    "reasoning": {"small": 0.30, "large": 0.90, "coder": 0.50},
}
TEXTS = {
    "chat": "Write a friendly note to my neighbor",
    "code": "def total(items): return sum(items)  # why does this fail?",
    "reasoning": "Prove step by step that the number is prime",
}
DOLLAR = 40.0  # worth of a dollar, in units of quality
PROMPTS = 600


def features(prompt: str) -> dict[str, object]:
    """Return what is known of a prompt before a model has answered it; an embedding could be one more feature."""
    return {
        "code": any(sign in prompt for sign in ("def ", "()", "{")),
        "steps": any(word in prompt.lower() for word in ("prove", "why", "step")),
        "words": len(prompt.split()),
    }


def reward(quality: float, model: str, tokens: int) -> float:
    """Return quality less cost, in [-1, 1]."""
    return quality - DOLLAR * PRICES[model] * tokens / 1e6


def main() -> None:
    rng, loop = random.Random(0), f"models-{uuid.uuid4().hex[:8]}"
    waiting: deque[tuple[str, float]] = deque()
    earned: list[float] = []
    alone: dict[str, list[float]] = {model: [] for model in PRICES}
    dollars = dict.fromkeys(["routed", *PRICES], 0.0)
    with Client(URL, loop=loop) as client:
        client.create_loop(loop, {"reward_range": [-1, 1], "default_reward": None, "wait_time": 3600})
        for _ in range(PROMPTS):
            kind, tokens = rng.choice(list(TEXTS)), rng.randint(200, 1500)
            prompt = TEXTS[kind] + " please" * rng.randint(0, 20)
            decision = client.rank(context=features(prompt), actions=MODELS, timeout=10)
            results = {model: reward(QUALITY[kind][model] + rng.gauss(0, 0.1), model, tokens) for model in PRICES}
            results = {model: min(max(value, -1.0), 1.0) for model, value in results.items()}
            earned.append(results[decision.action])
            waiting.append((decision.event_id, earned[-1]))
            for model, value in results.items():
                alone[model].append(value)
                dollars[model] += PRICES[model] * tokens / 1e6
            dollars["routed"] += PRICES[decision.action] * tokens / 1e6
            if len(waiting) > 20:
                event, judged = waiting.popleft()
                if rng.random() < 0.9:
                    client.reward(event, judged)
        client.flush()
    half = PROMPTS // 2
    print("model     reward of the second half   dollars for all prompts")
    for name, rewards in {"routed": earned, **alone}.items():
        print(f"{name:10}{sum(rewards[half:]) / half:25.3f}{dollars[name]:26.2f}")


if __name__ == "__main__":
    main()
