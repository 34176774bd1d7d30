"""What people hold after ``prepare``: the model, its optimizers and the steps."""
