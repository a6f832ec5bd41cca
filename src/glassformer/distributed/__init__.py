"""The processes of a run: how one joins the others, what they tell each other, and who holds the weights."""
