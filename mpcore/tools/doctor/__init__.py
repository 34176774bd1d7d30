"""What is installed here, what each dtype costs, and what to do about it."""
