"""The rules of the target ``mindspore``, in two passes: training steps, then names."""
