// A device that is not the CPU: memory of its own, no kernels but the CPU's behind it.
//
// Tensors of it cannot be mixed with the CPU's, and every value that the host reads is counted; so
// what a step does with devices is seen where there is no accelerator. Streams, 16-bit kernels and
// speed are not simulated.

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
std::atomic<int64_t> reads{0};

c10::Device only() { return c10::Device(kType, 0); }

struct Memory final : c10::Allocator {
  static void release(void* data) { std::free(data); }
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : std::malloc(bytes);
    TORCH_CHECK(bytes == 0 || data != nullptr, "the simulated device is full");
    return {data, data, &release, only()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

Memory memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return only(); }
  c10::Device getDevice() const override { return only(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, only());
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Device getDeviceFromPtr(void*) const override { return only(); }
};

Hooks hooks;

// The same bytes, as a tensor of the CPU.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(c10::kCPU).requires_grad(false));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (from.is_privateuseone() && !to.is_privateuseone()) ++reads;
  auto host = on_host(to);
  host.copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  ++reads;
  return on_host(tensor).item();
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}

// Runs the CPU's kernel on the device's own memory; what it returns is of the device.
class HostCall {
 public:
  void arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto first = stack->size() - op.schema().arguments().size();
    for (auto at = first; at < stack->size(); ++at) (*stack)[at] = host((*stack)[at]);
  }
  void results(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto first = stack->size() - op.schema().returns().size();
    for (auto at = first; at < stack->size(); ++at) (*stack)[at] = back((*stack)[at]);
  }

 private:
  at::Tensor host(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
    // An `out=` of no elements is meant to be resized, which memory of another's cannot be.
    const auto options = tensor.options().device(c10::kCPU).requires_grad(false);
    moved_.emplace_back(tensor.numel() == 0 ? at::empty(tensor.sizes(), options) : on_host(tensor),
                        tensor);
    return moved_.back().first;
  }
  c10::IValue host(const c10::IValue& value) {
    if (value.isTensor()) return host(value.toTensor());
    if (value.isDevice()) return c10::IValue(c10::Device(c10::kCPU));
    if (value.isTensorList()) {
      c10::List<at::Tensor> all;
      for (const at::Tensor& tensor : value.toTensorVector()) all.push_back(host(tensor));
      return all;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> all;
      for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
        all.push_back(tensor ? std::optional<at::Tensor>(host(*tensor)) : tensor);
      }
      return all;
    }
    return value;
  }
  at::Tensor back(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    for (const auto& [there, ours] : moved_) {
      if (!there.is_same(tensor)) continue;
      if (ours.sizes() != tensor.sizes()) {
        ours.resize_(tensor.sizes());
        on_host(ours).copy_(tensor);
      }
      return ours;  // written in place
    }
    auto made = empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), {}, {}, {});
    on_host(made).copy_(tensor);
    return made;
  }
  c10::IValue back(const c10::IValue& value) {
    if (value.isTensor()) return back(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> all;
      for (const at::Tensor& tensor : value.toTensorVector()) all.push_back(back(tensor));
      return all;
    }
    return value;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> moved_;
};

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  HostCall call;
  call.arguments(op, stack);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.results(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("resize_", &resize);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

// Its autocast lists: enough for the nets of these tests.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("reads", [] { return reads.load(); }, "values that the host has read from the device");
}
