"""Stand-ins for what SGLang imports on the way to its radix cache and the cache never calls.

Kernels, model configurations and the package's own eager imports: none of it takes part in a match, an insert or an
eviction on a CPU. The tree, its controller, its components and its pools are the published wheel's own.
"""

# pyright: reportMissingImports=false
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType

ABSENT = {
    "IPython",
    "PIL",
    "compressed_tensors",
    "datasets",
    "dill",
    "fastapi",
    "flashinfer",
    "huggingface_hub",
    "openai",
    "orjson",
    "partial_json_parser",
    "pybase64",
    "pydantic",
    "pydantic_core",
    "requests",
    "safetensors",
    "sgl_kernel",
    "starlette",
    "torchvision",
    "transformers",
    "triton",
    "tvm_ffi",
    "zmq",
    "zstandard",
}
WITHOUT_INIT = ("sglang", "sglang.srt.configs", "sglang.srt.layers.quantization")  # their __init__ imports models
REPLACED = (
    "sglang.srt.utils.hf_transformers",
    "sglang.srt.utils.hf_transformers_patches",
    "sglang.srt.utils.hf_transformers_utils",
)
VERSIONS = {"transformers": "5.19.0", "triton": "3.4.0"}  # those that are compared with another


class _Anything(type):
    """A class that has every attribute, and is a decorator, a decorator's factory, a base class or an annotation."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _anything(name)
        setattr(cls, name, made)
        return made

    def __call__(cls, *args, **options):
        if "stands_in" not in vars(cls):  # a subclass of one, with a life of its own
            return super().__call__(*args, **options)
        decorated = len(args) == 1 and not options and isinstance(args[0], FunctionType | type)
        return args[0] if decorated else cls

    def __getitem__(cls, key) -> type:
        return cls

    def __or__(cls, other) -> type:
        return cls

    def __ror__(cls, other) -> type:
        return cls

    def __iter__(cls):
        return iter(())

    def __bool__(cls) -> bool:
        return False


class _Base(metaclass=_Anything):
    """So that a stand-in can be subclassed with options, and its subclasses made with any arguments."""

    def __init_subclass__(cls, **options) -> None:
        super().__init_subclass__()

    def __init__(self, *args, **options) -> None:
        pass


def _anything(name: str) -> type:
    return _Anything(name, (_Base,), {"stands_in": True})


class _Module(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _anything(name)
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname, path=None, target=None):
        stands_in = fullname.split(".")[0] in ABSENT or any(
            fullname == name or fullname.startswith(name + ".") for name in REPLACED
        )
        return ModuleSpec(fullname, self, is_package=True) if stands_in else None

    def create_module(self, spec):
        module = _Module(spec.name)
        vars(module)["__version__"] = VERSIONS.get(spec.name, "0")
        return module

    def exec_module(self, module) -> None:
        pass


def install(wheel: Path) -> None:
    """Makes `import sglang` take the modules of an unpacked wheel. Torch is to find no stand-in, so it goes first."""
    import torch._inductor.compile_fx
    import torch.utils._triton

    torch.utils._triton.has_triton_package()  # remembers that there is none
    sys.meta_path.insert(0, _Finder())
    for name in WITHOUT_INIT:
        package = _Module(name)
        package.__path__ = [str(wheel.joinpath(*name.split(".")))]
        package.__spec__ = ModuleSpec(name, None, is_package=True)
        package.__spec__.submodule_search_locations = package.__path__
        sys.modules[name] = package
