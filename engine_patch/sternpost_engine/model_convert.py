"""
Turn the small model's GGUF file into a folder that vLLM and transformers load, and prove that it answers.

Run as `python -m sternpost_engine.model_convert SOURCE TARGET`, in a process of its own, so that the memory
of torch goes back when it ends. The GGUF reader of transformers undoes the permutation of the query and key
rows; a folder that merely held the renamed tensors would load and answer nonsense, hence the proof.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

GGUF_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The file in the package that holds weights, tokenizer and chat template."""

QUESTION: Final = "What is the capital of France?"
ANSWER: Final = "Paris"
ANSWER_TOKENS_MAX: Final = 40

EXIT_WRONG_ANSWER: Final = 3
"""The status when the converted model does not answer as it must."""


def convert(source: Path, target: Path) -> None:
    """Write float32 weights, a clean configuration, and the tokenizer with its chat template to `target`."""
    # Imported here: the package's other modules must not need the engine's stack.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_NAME, dtype=torch.float32)
    # A model whose configuration still names GGUF as its quantisation cannot be saved.
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)
    settings["architectures"] = ["LlamaForCausalLM"]
    clean = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.float32)
    clean.load_state_dict(read.state_dict(), strict=True)
    clean.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF_NAME).save_pretrained(target)


def answer(model_directory: Path, question: str) -> str:
    """Return the greedy answer of the model in `model_directory`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_directory)
    model: Any = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32).eval()
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=ANSWER_TOKENS_MAX, do_sample=False
    )
    return str(tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True))


def main(source: Path, target: Path) -> int:
    """Convert and prove; return the exit status."""
    convert(source, target)
    text = answer(target, QUESTION)
    if ANSWER in text:
        return 0
    print(f"asked {QUESTION!r}, the converted model answers {text!r}, without {ANSWER!r}", file=sys.stderr)
    return EXIT_WRONG_ANSWER


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
