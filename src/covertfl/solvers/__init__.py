"""How the decision is made: exact dynamic programmes, exact constrained solutions and checks."""
