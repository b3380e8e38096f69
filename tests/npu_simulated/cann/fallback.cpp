// One kernel for the operators of aten that stand here in the place of torch_npu's: it waits for the
// current stream, and calls torch's CPU kernel on the bytes of the device.
//
// With SIMULATED_NPU_DELAY_US what it computed is written by the stream, later than the call, as a kernel
// of the device would: another stream that does not wait reads what was there before.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include "runtime.h"

namespace {

using c10::IValue;

at::Tensor host(const at::Tensor& given) {
  if (!given.defined() || !given.is_privateuseone()) return given;
  TORCH_CHECK(!given.is_conj() && !given.is_neg(), "the simulated NPU has no lazy conjugation");
  void* bytes = given.numel() ? simulated_contents(given.data_ptr()) : nullptr;
  return at::from_blob(bytes, given.sizes(), given.strides(), given.options().device(at::kCPU).requires_grad(false));
}

struct CurrentStream {
  c10::impl::VirtualGuardImpl guard{at::kPrivateUse1};
  c10::Stream stream;
  explicit CurrentStream(c10::Device device) : stream(guard.getStream(device)) {}
  void wait() const { guard.synchronizeStream(stream); }
  void write(const at::Tensor& into, const at::Tensor& values) const {
    static const bool late = simulated::setting("SIMULATED_NPU_DELAY_US", 0) > 0;
    if (!into.numel()) return;
    auto job = [into = host(into), values] { into.copy_(values); };
    if (!late) return job();
    auto run = [](void* given) {
      std::unique_ptr<std::function<void()>> kept(static_cast<std::function<void()>*>(given));
      at::AutoDispatchBelowADInplaceOrView below;
      (*kept)();
    };
    simulated_launch(guard.getStreamNativeHandle(stream), run, new std::function<void()>(std::move(job)));
  }
};

// A call of an operator on the device, and the same call on the host.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void run();
  void answer();
  void keep(void* on);  // let the graph under capture call it again
  void* stream() const { return stream_.guard.getStreamNativeHandle(stream_.stream); }

 private:
  const c10::FunctionSchema& schema() const { return op_.schema(); }
  IValue mine(size_t at);
  at::Tensor mine(const at::Tensor& given, const c10::Argument& argument);
  IValue generator(const IValue& given);
  at::Tensor device(const at::Tensor& made) const;
  IValue theirs(const IValue& made, const c10::Argument& returned) const;
  c10::Device where() const;

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  std::vector<IValue> given_;
  torch::jit::Stack inner_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // of the device, of the host
  CurrentStream stream_;
};

bool writes(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

Call::Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
    : op_(op), stack_(stack), given_(stack->end() - int64_t(op.schema().arguments().size()), stack->end()),
      stream_(where()) {}

c10::Device Call::where() const {
  for (const auto& value : given_)
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_privateuseone())
      return value.toTensor().device();
  for (const auto& value : given_)
    if (value.isDevice() && value.toDevice().is_privateuseone() && value.toDevice().has_index()) return value.toDevice();
  return c10::impl::VirtualGuardImpl(at::kPrivateUse1).getDevice();
}

at::Tensor Call::mine(const at::Tensor& given, const c10::Argument& argument) {
  if (!given.defined() || !given.is_privateuseone()) return given;
  if (!writes(argument)) return host(given);
  // The CPU kernel gives a result that is only written its shape.
  at::Tensor own = argument.is_out() ? at::empty({0}, given.options().device(at::kCPU).requires_grad(false))
                                     : host(given).clone();
  written_.emplace_back(given, own);
  return own;
}

// As on the device: numbers follow from a seed and an offset, and the offset moves on.
IValue Call::generator(const IValue& given) {
  at::Generator theirs = given.isNone() ? at::globalContext().defaultGenerator(where()) : given.toGenerator();
  if (theirs.device().is_cpu()) return theirs;
  const uint64_t offset = theirs.get_offset();
  theirs.set_offset(offset + 4);
  return at::detail::createCPUGenerator(theirs.current_seed() * 1000003 + offset);
}

IValue Call::mine(size_t at) {
  const auto& argument = schema().arguments()[at];
  const IValue& value = given_[at];
  if (argument.name() == "generator") return generator(value);
  if (argument.name() == "pin_memory") return {};
  if (value.isTensor()) return mine(value.toTensor(), argument);
  if (value.isDevice()) return c10::Device(at::kCPU);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(mine(each, argument));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> each : value.toOptionalTensorList())
      list.push_back(each ? std::optional(mine(*each, argument)) : std::nullopt);
    return list;
  }
  return value;
}

void Call::run() {
  stream_.wait();
  for (size_t at = 0; at < given_.size(); at++) inner_.push_back(mine(at));
  at::AutoDispatchBelowADInplaceOrView below;
  op_.callBoxed(&inner_);
}

at::Tensor Call::device(const at::Tensor& made) const {
  if (!made.defined() || !made.device().is_cpu()) return made;
  const auto options = made.options().device(where());
  const bool dense = made.dim() == 0 || made.is_non_overlapping_and_dense();
  at::Tensor found = dense ? at::empty_strided(made.sizes(), made.strides(), options) : at::empty(made.sizes(), options);
  stream_.write(found, made);
  return found;
}

IValue Call::theirs(const IValue& made, const c10::Argument& returned) const {
  if (writes(returned)) {
    for (size_t at = 0; at < given_.size(); at++) {
      const auto* alias = schema().arguments()[at].alias_info();
      if (alias && alias->isWrite() && alias->afterSets() == returned.alias_info()->afterSets()) return given_[at];
    }
    TORCH_CHECK(false, "which argument does ", schema().name(), " return?");
  }
  if (made.isTensor()) return device(made.toTensor());
  if (!made.isTensorList()) return made;
  c10::List<at::Tensor> list;
  for (const at::Tensor& each : made.toTensorVector()) list.push_back(device(each));
  return list;
}

void Call::answer() {
  for (const auto& [theirs, own] : written_) {
    if (theirs.sizes() != own.sizes()) theirs.resize_(own.sizes());
    stream_.write(theirs, own);
  }
  torch::jit::drop(*stack_, given_.size());
  for (size_t at = 0; at < inner_.size(); at++) stack_->push_back(theirs(inner_[at], schema().returns()[at]));
}

// What a graph keeps of a call: where its tensors lie, on the host's side, and the operator.
struct Kept {
  c10::OperatorHandle op;
  std::vector<IValue> arguments, results;
  void run();
};

IValue as_host(const IValue& value) {
  if (value.isTensor()) return host(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(host(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> each : value.toOptionalTensorList())
      list.push_back(each ? std::optional(host(*each)) : std::nullopt);
    return list;
  }
  if (value.isDevice()) return c10::Device(at::kCPU);
  return value;
}
void write(const IValue& into, const IValue& made) {
  if (into.isTensor()) into.toTensor().copy_(made.toTensor());
  if (!into.isTensorList()) return;
  const auto to = into.toTensorVector(), from = made.toTensorVector();
  for (size_t at = 0; at < to.size(); at++) to[at].copy_(from[at]);
}
void Kept::run() {
  at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::Stack stack;
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  for (size_t at = 0; at < arguments.size(); at++) {
    const auto& argument = op.schema().arguments()[at];
    if (!writes(argument) || !arguments[at].isTensor()) {
      stack.push_back(argument.name() == "pin_memory" ? IValue() : arguments[at]);
      continue;
    }
    const at::Tensor& theirs = arguments[at].toTensor();
    at::Tensor own = argument.is_out() ? at::empty({0}, theirs.options()) : theirs.clone();
    written.emplace_back(theirs, own);
    stack.push_back(own);
  }
  op.callBoxed(&stack);
  for (const auto& [theirs, own] : written) theirs.copy_(own);
  for (size_t at = 0; at < results.size(); at++)
    if (!writes(op.schema().returns()[at])) write(results[at], stack[at]);
}

void Call::keep(void* on) {
  auto kept = std::make_unique<Kept>(Kept{op_, {}, {}});
  for (const IValue& each : given_) kept->arguments.push_back(as_host(each));
  const size_t results = schema().returns().size();
  for (auto at = stack_->end() - int64_t(results); at != stack_->end(); ++at) kept->results.push_back(as_host(*at));
  auto run = [](void* job) { static_cast<Kept*>(job)->run(); };
  simulated_keep(on, run, [](void* job) { delete static_cast<Kept*>(job); }, kept.release());
}

void on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op, stack);
  void* stream = call.stream();
  const int capture = simulated_capture(stream);
  TORCH_CHECK(capture < 2, "the simulated NPU replaces no task by ", op.schema().name());
  call.run();
  call.answer();
  if (capture) call.keep(stream);
}

// Put the kernel over torch_npu's, for the operators named.
void take_over(const std::vector<std::string>& names) {
  static auto* kept = new std::vector<std::unique_ptr<torch::Library>>();
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1,
                                                  __FILE__, __LINE__);
  for (const auto& name : names)
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
  kept->push_back(std::move(library));
}

// What lies on the device, as a tensor of the host over the same bytes.
at::Tensor contents(const at::Tensor& given) {
  CurrentStream(given.device()).wait();
  return host(given);
}

}  // namespace

TORCH_LIBRARY(simulated_npu, library) {
  library.def("take_over(str[] names) -> ()", take_over);
  library.def("contents(Tensor(a) given) -> Tensor(a)");
  library.impl("contents", c10::DispatchKey::PrivateUse1, contents);
}
