"""Checks the emulator with Bochs: runs each case's code, and compares memory with the emulator's result.

    judge.py CASES.json

The test `bochs_judges_instructions` writes the cases and runs this when IXC_BOCHS names a Python that has bochscpu:

    python3 -m venv /tmp/bochs && /tmp/bochs/bin/pip install bochscpu-python==0.4.0
    IXC_BOCHS=/tmp/bochs/bin/python cargo test -p ixc-emulator --test emulator bochs_judges -- --nocapture

With a C library older than glibc 2.38 the package lacks symbols; give them to it:

    cc -shared -fPIC -o /tmp/bochs/isoc23.so emulator/tests/emulator/bochs/isoc23.c
    LD_PRELOAD=/tmp/bochs/isoc23.so IXC_BOCHS=... cargo test ...

CASES.json is a list of objects:
    name    what the case is about
    code    machine code in hexadecimal: a function with the addresses of input and output at rdi, that ends in ret
    input   the input page in hexadecimal
    output  what the output page must hold afterwards, in hexadecimal (it starts as zeros)

Prints one line per case that differs or faults and a summary per name; exits with 1 if a case failed.
"""

import collections
import json
import os
import sys

import bochscpu
import bochscpu.cpu
import bochscpu.memory

PAGE = bochscpu.memory.page_size()
PML4 = 0x10_0000
RW, CODE = 1, 0
# Guest virtual and physical addresses.
PAGES = {
    "halt": (0x41_0000_0000, 0x1400_0000, CODE),
    "stack": (0x42_0000_0000, 0x1500_0000, RW),
    "input": (0x43_0000_0000, 0x1600_0000, RW),
    "output": (0x44_0000_0000, 0x1700_0000, RW),
}
# Each case's code has its own address, because Bochs caches decoded instructions, and would not
# notice new ones at an old address.
CODE_VIRTUAL, CODE_PHYSICAL, CODE_BYTES = 0x45_0000_0000, 0x2000_0000, 256
HLT, TRAP = b"\xf4", b"\xcc"


def missing_page(gpa):
    raise RuntimeError(f"access to physical address {gpa:#x}, which has no page")


def make_machine(cases):
    session = bochscpu.Session()
    session.missing_page_handler = missing_page
    table = bochscpu.memory.PageMapLevel4Table()

    def insert(virtual, physical, access):
        bochscpu.memory.page_insert(physical, bochscpu.memory.allocate_host_page())
        table.insert(virtual, physical, access)

    for virtual, physical, access in PAGES.values():
        insert(virtual, physical, access)
    code = b""
    for case in cases:
        function = bytes.fromhex(case["code"])
        assert len(function) <= CODE_BYTES
        code += function.ljust(CODE_BYTES, TRAP)
    for at in range(0, len(code), PAGE):
        insert(CODE_VIRTUAL + at, CODE_PHYSICAL + at, CODE)
        write(CODE_PHYSICAL + at, code[at : at + PAGE])
    for host, physical in table.commit(PML4):
        bochscpu.memory.page_insert(physical, host)
    write(PAGES["halt"][1], HLT)
    return session, table  # which owns the pages of the page table


def segment(selector, attributes):
    s = bochscpu.Segment()
    s.present, s.selector, s.base, s.limit, s.attr = True, selector, 0, 0xFFFF_FFFF, attributes
    return s


def start_state(code):
    state = bochscpu.State()
    bochscpu.cpu.set_long_mode(state)
    state.cr3 = PML4
    state.cr4 |= 1 << 9 | 1 << 10 | 1 << 18  # OSFXSR, OSXMMEXCPT, OSXSAVE
    state.xcr0 = 0xE7  # x87, SSE, AVX, opmask, both halves of the 512-bit registers
    state.mxcsr = 0x1F80
    state.mxcsr_mask = 0xFFFF
    state.cs = segment(0x10, 0x209B)  # privileged, for hlt
    data = segment(0x18, 0xC93)
    state.ds = state.ss = state.es = state.fs = state.gs = data
    state.rip = code
    state.rsp = PAGES["stack"][0] + PAGE // 2
    state.rdi = PAGES["stack"][0]  # where the two addresses stand
    return state


def write(physical, data):
    # By physical address, as the guest may not write its code.
    assert len(data) <= PAGE
    bochscpu.memory.phy_write(physical, list(data.ljust(PAGE, b"\0")))


def run(session, number, case):
    """Runs a case. Returns None, or the text of the failure."""
    code = CODE_VIRTUAL + CODE_BYTES * number
    write(PAGES["input"][1], bytes.fromhex(case["input"]))
    write(PAGES["output"][1], b"")
    pages = b"".join(PAGES[page][0].to_bytes(8, "little") for page in ("input", "output"))
    write(PAGES["stack"][1], pages.ljust(PAGE // 2, b"\0") + PAGES["halt"][0].to_bytes(8, "little"))
    session.cpu.state = start_state(code)

    faults = []

    def on_exception(session, cpu, vector, error):
        faults.append(f"exception {vector} at offset {session.cpu.rip - code:#x}")
        session.stop()

    hook = bochscpu.Hook()
    hook.exception = on_exception
    hook.hlt = lambda session, cpu: session.stop()
    session.run([hook])
    if faults:
        return faults[0]
    right = bytes.fromhex(case["output"])
    found = bytes(bochscpu.memory.phy_read(PAGES["output"][1], len(right)))
    if found == right:
        return None
    at = next(i for i in range(len(right)) if found[i] != right[i]) & ~7
    return f"byte {at} of the output: Bochs {found[at:at + 16].hex()}, emulator {right[at:at + 16].hex()}"


def main():
    with open(sys.argv[1]) as file:
        cases = json.load(file)
    session, _table = make_machine(cases)
    total, failed = collections.Counter(), collections.Counter()
    for number, case in enumerate(cases):
        wrong = run(session, number, case)
        total[case["name"]] += 1
        if wrong:
            failed[case["name"]] += 1
            if failed[case["name"]] <= 3:
                print(f"{case['name']}: {wrong}\n    code {case['code']}")
    print(f"{len(cases)} cases of {len(total)} instructions judged by Bochs, {sum(failed.values())} failed")
    for name, count in failed.items():
        print(f"    {name}: {count} of {total[name]}")
    sys.stdout.flush()
    os._exit(1 if failed or not cases else 0)  # without the bindings' report of what they leak


if __name__ == "__main__":
    main()
