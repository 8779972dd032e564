"""DeepCoder-MT: write a program, see which visible tests fail, mend it; hidden tests decide."""
