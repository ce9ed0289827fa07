"""The pure core: rates, identities, rules, algorithms and the flow of a decision. Standard library only."""
