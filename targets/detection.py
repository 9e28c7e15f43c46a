"""The bit for each flag of ``/proc/cpuinfo`` in the registers and words that a program can read.

On x86, a program reads CPUID's leaves 1, 7, 0x1e (AMX) and 0x24 (AVX10). It also reads XCR0, which
tells which registers the operating system saves (Intel 64 and IA-32 Architectures Software
Developer's Manual, volume 2, CPUID, and volume 1, chapter 13; Architecture Instruction Set
Extensions Programming Reference). Bit v of the word AVX10 is set if the CPU has AVX10 version v.

On AArch64 and POWER, it reads the kernel's auxiliary vector (Linux,
Documentation/arch/arm64/elf_hwcaps and arch/powerpc/elf_hwcaps). Each thread has its own length of
SVE's vectors (arch/arm64/sve), and of vectors in SME's streaming mode (arch/arm64/sme). In the
words VECTORS and STREAMING, bit i is set if a vector has i segments of 128 bits.

On RISC-V, it reads the register ``vlenb`` and calls ``hwprobe`` (arch/riscv/hwprobe). The flag
``v`` of ``hwprobe`` means version 1.0 of the vector extension.
"""

from __future__ import annotations

from tilewright.isa.machine import CpuBit, Detection

#: Bits of XCR0 that are set if the operating system saves the registers of an extension: vectors of
#: 256 bits, masks and vectors of 512 bits, AMX's tiles.
_YMM, _ZMM, _TILES = 0x6, 0xE6, 0x60000

X86 = Detection(
    template="library/cpu_x86.c.j2",
    words=(
        "LEAF_1_ECX", "LEAF_7_EBX", "LEAF_7_ECX", "LEAF_7_EDX", "LEAF_7_1_EAX", "LEAF_7_1_EDX",
        "LEAF_1E_1_EAX", "AVX10", "XCR0",
    ),
    bits={
        "fma": CpuBit("LEAF_1_ECX", 12, _YMM),
        "f16c": CpuBit("LEAF_1_ECX", 29, _YMM),
        "avx2": CpuBit("LEAF_7_EBX", 5, _YMM),
        "avx512f": CpuBit("LEAF_7_EBX", 16, _ZMM),
        "avx512dq": CpuBit("LEAF_7_EBX", 17, _ZMM),
        "avx512cd": CpuBit("LEAF_7_EBX", 28, _ZMM),
        "avx512bw": CpuBit("LEAF_7_EBX", 30, _ZMM),
        "avx512vl": CpuBit("LEAF_7_EBX", 31, _ZMM),
        "avx512_vnni": CpuBit("LEAF_7_ECX", 11, _ZMM),
        "amx_bf16": CpuBit("LEAF_7_EDX", 22, _TILES),
        "amx_tile": CpuBit("LEAF_7_EDX", 24, _TILES),
        "amx_int8": CpuBit("LEAF_7_EDX", 25, _TILES),
        "avx_vnni": CpuBit("LEAF_7_1_EAX", 4, _YMM),
        "avx512_bf16": CpuBit("LEAF_7_1_EAX", 5, _ZMM),
        "amx_fp16": CpuBit("LEAF_7_1_EAX", 21, _TILES),
        "avx512_fp16": CpuBit("LEAF_7_EDX", 23, _ZMM),
        "avx_vnni_int8": CpuBit("LEAF_7_1_EDX", 4, _YMM),
        "avx_vnni_int16": CpuBit("LEAF_7_1_EDX", 10, _YMM),
        "avx10_2": CpuBit("AVX10", 2, _ZMM),
        "amx_fp8": CpuBit("LEAF_1E_1_EAX", 4, _TILES),
    },
    macro="__x86_64__",
    processors=("x86_64", "amd64", "AMD64"),
    # Older Linux kernels leave these flags out of /proc/cpuinfo.
    unlisted=("avx_vnni", "avx_vnni_int8", "avx_vnni_int16", "avx10_2", "amx_fp16", "amx_fp8"),
)  # fmt: skip
ARM = Detection(
    template="library/cpu_hwcap.c.j2",
    words=("HWCAP", "HWCAP2", "VECTORS", "STREAMING"),
    bits={
        "asimd": CpuBit("HWCAP", 1),
        "asimddp": CpuBit("HWCAP", 20),
        "sve": CpuBit("HWCAP", 22),
        "asimdfhm": CpuBit("HWCAP", 23),
        "sve2": CpuBit("HWCAP2", 1),
        "svei8mm": CpuBit("HWCAP2", 9),
        "svebf16": CpuBit("HWCAP2", 12),
        "i8mm": CpuBit("HWCAP2", 13),
        "bf16": CpuBit("HWCAP2", 14),
        "sme": CpuBit("HWCAP2", 23),
        "smei16i64": CpuBit("HWCAP2", 24),
        "smef64f64": CpuBit("HWCAP2", 25),
        "sme2": CpuBit("HWCAP2", 37),
        **{f"sve{bits}": CpuBit("VECTORS", bits // 128) for bits in (128, 256, 512, 1024, 2048)},
        "svl512": CpuBit("STREAMING", 4),
    },
    varying={"VECTORS": 51, "STREAMING": 64},
    macro="__aarch64__",
    processors=("aarch64", "arm64", "ARM64"),
)
POWER = Detection(
    template="library/cpu_hwcap.c.j2",
    words=("HWCAP", "HWCAP2"),
    bits={"mma": CpuBit("HWCAP2", 17), "arch_3_1": CpuBit("HWCAP2", 18)},
    macro="__powerpc64__",
    processors=("ppc64le", "powerpc64le"),
)
RISCV = Detection(
    template="library/cpu_riscv.c.j2",
    words=("IMA_EXT_0", "VECTORS"),
    bits={
        "v": CpuBit("IMA_EXT_0", 2),
        "zvfh": CpuBit("IMA_EXT_0", 30),
        "zvfbfwma": CpuBit("IMA_EXT_0", 54),
        **{f"vlen{bits}": CpuBit("VECTORS", bits // 128) for bits in (128, 256, 512, 1024)},
    },
    varying={"VECTORS": 0},
    macro="__riscv",
    processors=("riscv64",),
)
