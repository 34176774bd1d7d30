"""Names of torch: what stands for them in MindSpore, and how scripts spell them."""
