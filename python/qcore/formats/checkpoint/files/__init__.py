"""Headers of safetensors and GGUF files, and the files that a path means."""
