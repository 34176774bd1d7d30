"""What scripts ask torch of itself: versions, switches, memory; in logs and around settings."""

from __future__ import annotations

import pytest

from .ports import beside, loaded, ported

SHOWN = (
    "print(torch.version.cuda)",
    "print('cuda', torch.version.cuda or 'none', torch.version.git_version)",
    'logger.info(f"cuda {torch.version.cuda} {torch.__config__.show()}")',
    "print('cuda %s' % torch.version.cuda)",
    "print('cuda {}'.format(torch.cuda.get_arch_list()))",
    "print(torch.backends.cudnn.enabled, torch.get_num_threads())",
    "raise RuntimeError(f'no {torch.version.cuda}')",
    "assert net, f'no {torch.version.cuda}'",
    "def say():\n    found = torch.version.cuda\n    print(f'cuda {found}')",
)


@pytest.mark.parametrize("line", SHOWN)
def test_what_is_only_printed_may_be_something_else(line):
    found = ported(f"import torch\n{line}\n")
    assert found.said.kind != "stops"
    assert "what the script prints" in {edit.effect for edit in found.edits}
    assert "torch." not in found.text


DECIDES = (
    "if torch.version.cuda:\n    lr = 0.1",
    "half = len(torch.cuda.get_arch_list()) >= 8",
    "lr = 0.1 if torch.backends.cudnn.benchmark_limit else 0.2",
    "torch.backends.cudnn.benchmark = flag = True\nlr = torch.backends.cudnn.benchmark * 0.1",
    "cuda = torch.version.cuda",  # another file may ask for it
    "print(torch.cuda.get_arch_list()[0])",
    "print(f'{torch.version.cuda:>4}')",
    "def say():\n    found = torch.version.cuda\n    print(found)\n    return found",
    "print(scale(torch.version.cuda))",
)


@pytest.mark.parametrize("line", DECIDES)
def test_what_decides_something_is_refused(line):
    assert any(edit.kind == "refused" for edit in ported(f"import torch\n{line}\n").edits)


ASKED = """import torch
import torch.backends.cudnn as cudnn
assert torch.backends.cudnn.enabled, "float16 wants cuDNN"
made = [cudnn.benchmark and cudnn.deterministic]
cudnn.deterministic = True
torch.backends.cudnn.benchmark = False
made += [cudnn.benchmark, cudnn.deterministic, torch.backends.cudnn.allow_tf32]
"""


def test_a_switch_that_the_file_asks_for_is_what_the_file_sets(tmp_path):
    found = beside(ASKED, tmp_path)
    assert "refused" not in {edit.kind for edit in found.edits}
    assert "not seen" in "".join(edit.effect for edit in found.edits)


SWITCHES = """import torch
import torch.backends.cudnn as cudnn
made, seen = [], []
cudnn.benchmark, cudnn.deterministic = False, True
torch.backends.cudnn.benchmark = flag = True
torch.set_num_threads(1); torch.set_num_interop_threads(1)
if torch.cuda.is_available():
    torch.cuda.set_sync_debug_mode(0)
torch.cuda.reset_max_memory_allocated(); torch.cuda.reset_peak_memory_stats(); made.append(3)
if hasattr(torch._inductor.config, "fx_graph_cache"):
    torch._inductor.config.fx_graph_cache = True
if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8:
    torch.backends.cuda.matmul.allow_tf32 = True
    print("TF32 is on")
torch.backends.cuda.matmul.allow_tf32 = torch.cuda.get_device_capability()[0] >= 8
old = torch.backends.cudnn.benchmark
torch.backends.cudnn.benchmark = old
torch._C._jit_set_profiling_mode(False)
with torch.backends.cudnn.flags(enabled=False), torch.cuda.nvtx.range("step"):
    made.append(torch.ones(2) * 3)
torch.cuda.cudart().cudaProfilerStart()
kinds = [torch.profiler.ProfilerActivity.CPU]
with torch.profiler.profile(activities=kinds) as run:
    made.append(torch.ones(2) * 4)
    run.step()
with torch.jit.optimized_execution(False):
    made.append(torch.ones(2) * 5)
made.append(float(flag))
stats = torch.cuda.memory_stats()
print(f'{torch.__version__} {stats["allocated_bytes.all.peak"] / 2**20:.1f}')
print(torch.cuda.max_memory_reserved(), torch.cuda.memory_cached())
"""


@pytest.mark.filterwarnings("ignore:torch's profiler")
def test_switches_go_and_what_stands_among_them_stays(tmp_path):
    found = ported(SWITCHES)
    assert not any(edit.kind == "refused" for edit in found.edits)
    made = loaded(found.text, tmp_path)["made"]
    assert [float(one.sum()) if hasattr(one, "sum") else one for one in made] == [3, 6, 8, 10, 1]


GUARDS = (
    "if torch.version.cuda:\n    torch.backends.cudnn.benchmark = True\n    lr = 0.1",
    "if torch.version.cuda:\n    torch.backends.cudnn.benchmark = True\nelse:\n    lr = 0.1",
    "if torch.version.cuda and asked():\n    torch.backends.cudnn.benchmark = True",
    "if torch.version.cuda:\n    print('hello')",
    "if torch.version.cuda:\n    torch.backends.cudnn.benchmark = asked()",
)


@pytest.mark.parametrize("text", GUARDS)
def test_a_guard_around_anything_else_is_asked(text):
    found = ported(f"import torch\n{text}\n")
    assert any(e.kind == "refused" and e.line == 2 for e in found.edits)


def test_a_guard_that_a_port_answers_keeps_what_is_printed():
    found = ported(
        "import torch\nif torch.cuda.is_available():\n"
        "    torch.backends.cudnn.benchmark = True\n    print('fast')\n"
    )
    assert "print('fast')" in found.text
    assert "False" not in found.text


LOGS = """import torch
from torch.utils import collect_env
from torch.utils.collect_env import get_pretty_env_info
print(get_pretty_env_info())
collect_env.main()
state = torch.cuda.get_rng_state()
torch.cuda.set_rng_state(state)
torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
torch.random.set_rng_state(torch.random.get_rng_state())
made = []
"""


def test_environments_are_told_and_states_of_generators_put_back(tmp_path, capsys):
    loaded(ported(LOGS).text, tmp_path)
    assert capsys.readouterr().out.count("MindSpore: ") == 2


GRADIENTS = """import torch
made = []
x = torch.ones(2)
with torch.autograd.no_grad():
    made.append(x * 2)
torch.autograd.set_grad_enabled(False)
made.append(x * 3)
torch.autograd.grad_mode.set_grad_enabled(True)
made.append(x * 4)
"""


def test_switches_of_gradients_have_the_names_of_their_module_too(tmp_path):
    found = beside(GRADIENTS, tmp_path)
    assert found.said.kind == "runs"
    assert "port.set_grad_enabled(False)" in found.text


def test_an_import_names_no_devices():
    found = ported("import torch\nfrom tools.device.names import place\nfrom a.dtype import b\n")
    assert "from tools.device.names import place" in found.text
    assert not any(edit.kind == "refused" for edit in found.edits)
