"""The tiny GPT-2 that ships with minikv, and the programs that made it."""
