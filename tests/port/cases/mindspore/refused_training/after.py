import mpcore_port_runtime as port


# mpcore port: keep
class _mpcore_refused:
    """Stands where the port has no equivalent; raises, with the reason, as soon as it is used."""

    def __init__(self, reason):
        self.__dict__["reason"] = reason

    def _raise(self, *args, **kwargs):
        raise NotImplementedError(self.__dict__["reason"])

    def __getattr__(self, name):
        if name.startswith("__") and name not in ("__name__", "__qualname__"):
            raise AttributeError(name)
        self._raise()

    def __mro_entries__(self, bases):
        return (type("_mpcore_refused_base", (), {"__new__": self._raise}),)

    __call__ = __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _raise
    __str__ = __repr__ = __format__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __contains__ = _raise
    __getitem__ = __setattr__ = __enter__ = __exit__ = __add__ = __radd__ = __mul__ = __rmul__ = __mod__ = _raise


def train(model, batches, optimizer):
    for x in batches:
        def forward():
            loss = model(x)
            return loss
        loss = port.loss(forward, model)
        if loss.item() > 10:
            continue
        loss.backward()
        port.step(optimizer)


def penalty(outputs, losses):
    # mpcore port: refused: losses["total"].backward: what its loss is made of was not found in this function
    _mpcore_refused("losses['total'].backward: what its loss is made of was not found in this function")()


def apex_late(model, batches, optimizer):
    pass

    for step, x in enumerate(batches):
        loss = model(x).mean()
        number = step % 2
        with port.apex.scale_loss(loss, optimizer, loss_id=number) as scaled:
            # mpcore port: refused: scaled.backward: its scaler is chosen after the loss: choose it in front of it
            _mpcore_refused("scaled.backward: its scaler is chosen after the loss: choose it in front of it")()
