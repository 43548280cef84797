"""Records turned into comparable quantities: pairs, endpoints, gaps, the noise floor. Decides nothing."""
