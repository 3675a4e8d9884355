"""Kernels of a compiled program: on a GPU small networks are bound by their launches, not by arithmetic."""

import re

# What is launched by itself. Everything else in an optimised program is free, or inside one of these.
_LAUNCHED = frozenset(
    "fusion dot convolution custom-call reduce reduce-window scatter gather sort select-and-scatter copy concatenate "
    "pad dynamic-slice dynamic-update-slice slice transpose rng rng-bit-generator cholesky triangular-solve fft "
    "all-reduce all-gather all-to-all collective-permute convert select compare add multiply subtract divide iota "
    "broadcast exponential log tanh rsqrt maximum minimum and or not xor".split()
)
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (\(?[^=]*?) ([a-z][\w\-]*)\(")
_CALLED = re.compile(r"(?:body|calls|to_apply|branch_computations)=\{?((?:%?[\w.\-]+(?:, )?)+)\}?")


def count_kernels(text: str) -> int:
    """Kernels of an optimised HLO program `text` (`compiled.as_text()`), a loop's body counted once.

    Scalars are left out: compilers keep them on the host or fold them into a neighbour.
    """
    computations: dict[str, list[str]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            current = found[2]
            computations[current] = []
            entry = current if found[1] else entry
        elif current:
            computations[current].append(line)

    def count(name: str) -> int:
        total = 0
        for line in computations.get(name, ()):
            found = _INSTRUCTION.match(line)
            if not found:
                continue
            shape, opcode = found[1], found[2]
            if opcode in ("while", "conditional", "call"):
                called = [c.strip().lstrip("%") for group in _CALLED.findall(line) for c in group.split(",")]
                total += sum(count(c) for c in called)
            elif opcode in _LAUNCHED and not re.fullmatch(r"\w+\[\](\{.*\})?", shape.strip()):
                total += 1
        return total

    return count(entry)
