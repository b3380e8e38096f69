"""Answers held-out prompts greedily with software that knows nothing of mindrl.

    python fresh_engine.py MODEL PROMPTS.jsonl COUNT

prints one JSON object: the answers of a fresh vLLM engine to all prompts, and those of
transformers to the first COUNT.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM, SamplingParams, TokensPrompt

MAX_TOKENS = 40


def main() -> None:
    folder, prompts, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    ids = [
        tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True)["input_ids"]
        for row in rows
    ]
    engine = LLM(folder, dtype="float32", enforce_eager=True, max_model_len=64)
    outputs = engine.generate(
        [TokensPrompt(prompt_token_ids=each) for each in ids],
        SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS),
        use_tqdm=False,
    )
    engine_answers = [output.outputs[0].text for output in outputs]

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    transformers_answers = []
    for each in ids[:count]:
        tokens = model.generate(torch.tensor([each]), max_new_tokens=MAX_TOKENS, do_sample=False)
        new = tokens[0, len(each) :]
        transformers_answers.append(tokenizer.decode(new, skip_special_tokens=True))
    print(json.dumps({"vllm": engine_answers, "transformers": transformers_answers}))


if __name__ == "__main__":
    main()
