"""Weights in and out: Hugging Face safetensors, GGUF in, LoRA adapters; and the folder where imported models live."""
