"""Builds the code of one network, compiles it, and runs it on batches of images.

A program computes groups of images, as many as a register has lanes. Its weights are one array, its
activations another one of each thread, so that any number of threads may share it.
"""

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from llvmlite import binding, ir
from torch import Tensor
from torch.nn.functional import pad

from rrcm.inference.lanes import kernels
from rrcm.inference.lanes.code import POINTER, Code
from rrcm.inference.lanes.kernels import Layer


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What code is compiled for: floats of a register, number of registers, instructions."""

    lanes: int
    registers: int
    cpu: str
    features: str
    triple: str


def here() -> Machine:
    """The machine that this runs on."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    has = binding.get_host_cpu_features()
    lanes, registers = (16, 32) if has.get("avx512f") else (8, 16) if has.get("avx") else (4, 32)
    return Machine(
        lanes=lanes,
        registers=registers,
        cpu=binding.get_host_cpu_name(),
        features=has.flatten(),
        triple=binding.get_process_triple(),
    )


class Program:
    """A network from pixels to scores.

    Its layers are written once, in order, each by a function of `kernels`. ``x`` are the pixels of
    a group, [pixel, lane].
    """

    def __init__(self, machine: Machine, *, pixels: int, classes: int, groups: int = 1) -> None:
        self.machine, self.pixels, self.classes, self.groups = machine, pixels, classes, groups
        self.module = ir.Module()
        self.module.triple = machine.triple
        self.functions: dict[Any, ir.Function] = {}
        self.weights: list[Tensor] = []
        self.vectors = 0  # of the activations
        self.code = self._function("forward", 4)
        self.scores, self.images, self.given, self.work = self.code.function.args

    def constant(self, values: Tensor) -> Any:
        """A pointer to ``values``, which become float32."""
        place = sum(map(len, self.weights))
        self.weights.append(values.detach().float().flatten())
        return self.code.at(self.given, place)

    def buffer(self, vectors: int) -> Any:
        """A pointer to ``vectors`` of activations, zero until they are written."""
        place = self.vectors
        self.vectors += vectors
        return self.code.within(self.work, place)

    def call(self, write: Callable[..., None], *settings: Any, to: list[Any]) -> None:
        """Run what ``write(code, *settings, pointers)`` writes on the pointers ``to``."""
        key = (write, settings, len(to))
        if key not in self.functions:
            code = self._function(f"{write.__name__}_{len(self.functions)}", len(to))
            write(code, *settings, code.function.args)
            code.builder.ret_void()
            self.functions[key] = code.function
        self.code.builder.call(self.functions[key], to)

    def product(
        self, layer: Layer, weight: Tensor, bias: Tensor, *, y: Any, x: Any, residual: Any = None
    ) -> None:
        """`kernels.product` with these weights [outputs, inputs] and bias."""
        packed = kernels.pack(layer, weight, self.machine.registers)
        to = [y, x, self.constant(packed), self.constant(bias)]
        self.call(kernels.product, layer, to=[*to, residual] if residual else to)

    def linear(self, trained: Any, *, y: Any, x: Any, residual: Any = None, **how: Any) -> None:
        """`product` with a ``trained`` Linear; ``how`` are places and activation of a `dense`."""
        outputs, inputs = trained.weight.shape
        layer = kernels.dense(inputs, outputs, **how)
        self.product(layer, trained.weight, trained.bias, y=y, x=x, residual=residual)

    def compile(self) -> "Compiled":
        """The finished program."""
        self.code.builder.ret_void()
        return Compiled(self)

    def _function(self, name: str, pointers: int) -> Code:
        kind = ir.FunctionType(ir.VoidType(), [POINTER] * pointers)
        function = ir.Function(self.module, kind, name=name)
        if name != "forward":
            function.linkage = "internal"
            function.attributes.add("noinline")
        return Code(function, lanes=self.machine.lanes, registers=self.machine.registers)


class Compiled:
    """A program in memory; `run` may be called by several threads at once."""

    def __init__(self, program: Program) -> None:
        self.lanes, self.groups = program.machine.lanes, program.groups
        self.pixels, self.classes = program.pixels, program.classes
        self.vectors = program.vectors
        self.weights = torch.cat(program.weights)
        target = binding.Target.from_triple(program.module.triple)
        machine = target.create_target_machine(
            cpu=program.machine.cpu, features=program.machine.features, opt=3
        )
        module = binding.parse_assembly(str(program.module))
        module.verify()
        options = binding.create_pipeline_tuning_options(speed_level=2)
        passes = binding.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        self.engine = binding.create_mcjit_compiler(module, machine)
        self.engine.finalize_object()
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)
        self.forward = kind(self.engine.get_function_address("forward"))
        self.kept = threading.local()  # the activations of each thread

    def run(self, x: Tensor) -> Tensor:
        """Scores [B, K] of pixels ``x`` [B, C, H, W], float32."""
        rows, turn = len(x), self.lanes * self.groups
        x = pad(x.reshape(rows, self.pixels), (0, 0, 0, -rows % turn)).contiguous()
        scores = torch.empty(len(x) // turn, self.groups, self.classes, self.lanes)
        if not hasattr(self.kept, "work"):  # zero where no layer writes, which the layers rely on
            self.kept.work = torch.zeros(self.vectors * self.lanes)
        weights, work = self.weights.data_ptr(), self.kept.work.data_ptr()
        for i, out in enumerate(scores):
            self.forward(out.data_ptr(), x[i * turn].data_ptr(), weights, work)
        return scores.transpose(2, 3).reshape(-1, self.classes)[:rows]
