"""Networks in the form that inference runs: the same function, without work that is constant."""
