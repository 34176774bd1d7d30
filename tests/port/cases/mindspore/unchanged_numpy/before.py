"""Nothing of torch: nothing to port."""

import numpy as np


class Trainer:
    def train(self, x):
        return x.mean(axis=0).repeat(2)

    def eval(self):
        return self.train(np.ones((2, 3))).std()


trainer = Trainer()
trainer.train(np.zeros(3))
trainer.eval()
