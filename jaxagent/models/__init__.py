"""Models: the decoder, its attention, its KV cache, log-probs in chunks, and the tokenizer."""
