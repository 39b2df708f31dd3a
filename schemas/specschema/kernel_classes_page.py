"""The documentation page of the kernel classes: ``python -m specschema.kernel_classes_page docs/kernel-classes.md``."""

from __future__ import annotations

from specschema.kernel_rules import RULES
from specschema.page import table, write_page
from specschema.phases import DEVICE_BUCKETS

_INTRODUCTION = """\
# Kernel classes

Generated from `specschema.kernel_rules` by `python -m specschema.kernel_classes_page docs/kernel-classes.md`.

Every device activity belongs to one bucket of the breakdown and, below it, to a subclass. Where a trace has a node map,
the module that launched a kernel decides; elsewhere its name does, by the ordered rules below. The first rule that
matches wins. Copies and fills (`memcpy`, `memset` events) are bucket `memcpy` whatever their name.

- A pattern is a regular expression, searched without regard to case in the function's qualified name: return type,
  template arguments, parameters, anonymous namespaces and mangling are taken off first, so that
  `elementwise_kernel<silu_kernel>` is an elementwise kernel and `flashinfer::norm::RMSNormKernel` a norm. Rules marked
  *whole name* look at all of it, because the function (`cutlass::device_kernel`) says nothing.
- Where the framework recorded the operation of a collective, that wins over the name: generic and send/receive kernels
  run all-reduces too. A generic NCCL kernel without it is `other_comm`, subclass `unknown`.
- A kernel that contains an all-reduce (with a norm, or the MoE finalize) is `allreduce`; one that contains another
  collective is `other_comm`. A function that calls itself a collective is believed. Mega-MoE kernels, which exchange
  tokens within the experts' GEMM, are `moe`, subclass `experts with exchange`.
- Router, top-k, alignment, experts and finalize are `moe`. Activations, norms, rotary embeddings, cache writes and
  elementwise kernels are `other_compute`: that one of them ran inside an MoE or attention block only the node map knows.
- Linear attention and state-space kernels are `other_compute`, subclass `linear_attention`.
- A name that no rule knows stays in `other_compute`, subclass `unclassified`; its device time is reported apart.
"""


def page() -> str:
    """The page as Markdown."""
    parts = [_INTRODUCTION]
    for bucket in DEVICE_BUCKETS:
        rows = [
            (str(index), rule.subclass, rule.origin + (" (whole name)" if rule.whole_name else ""), f"`{rule.pattern}`")
            for index, rule in enumerate(RULES)
            if rule.bucket == bucket
        ]
        if rows:
            parts.append(
                f"## {bucket}\n\n{table(('rule', 'subclass', 'where the names come from', 'pattern'), rows)}\n"
            )
    return "\n".join(parts)


if __name__ == "__main__":
    write_page(page, "specschema.kernel_classes_page")
