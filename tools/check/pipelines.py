"""Vulkan pipelines of the shipped modules, made without a GPU, for tools/check/vendors.

`modules` unpacks src/backend/vulkan/shader_table.h as the library does. `Vulkan` makes a pipeline with the
driver that the loader finds, as the library would. It reads the driver's report.
"""

import ctypes
import functools
import os
import re
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(1, os.path.join(ROOT, "tools/generate"))
import spirv_pack  # noqa: E402

TABLE = "src/backend/vulkan/shader_table.h"
SIDE = 5  # the constant of shaders/lib/types.glsl


def row_of(words):
    """A line of a record: the module, the invocations of a workgroup and the selectors."""
    return (words[0], *(int(word, 0) for word in words[1:6]))


def named(row):
    return [row[0], *(str(n) if n < 1 << 16 else hex(n) for n in row[1:])]


class Absent(Exception):
    """Nothing can be compared here."""


# ---- The modules of the table

def with_side(words, side):
    """The module's words, in bytes, where the constant `SIDE` (lib/types.glsl) has this value by itself."""
    words = list(words)
    number = None
    at = spirv_pack.HEADER
    while at < len(words):
        if words[at:at + 1] + words[at + 2:at + 4] == [4 << 16 | 71, 1, SIDE]:  # OpDecorate number SpecId SIDE
            number = words[at + 1]
        if words[at] == 4 << 16 | 50 and words[at + 2] == number:  # OpSpecConstant
            words[at + 3] = side
        at += words[at] >> 16
    return struct.pack(f"<{len(words)}I", *words)


@functools.cache
def modules():
    """kernel -> SPIR-V, as shipped."""
    with open(os.path.join(ROOT, TABLE), encoding="utf-8") as file:
        text = file.read()
    arrays = {}
    for name, body in re.findall(r"dti_vk_spirv_(\w+)\[\] = \{\n(.*?)\n\};", text, re.S):
        values = [int(v, 0) for v in body.replace("\n", "").split(",") if v]
        arrays[name] = struct.pack(f"<{len(values)}Q", *values)
    there = r"(?:DTI_HAS_\w+ \? )?"  # of what a program can leave out
    rows = re.findall(rf'\{{"(\w+)", {there}dti_vk_spirv_(\w+)(?: : NULL)?, {there}(\d+)(?: : 0)?, '
                      r'(\d+), (\d+), DTI_K_\w+, \d+\}', text)
    packed = {module: (arrays[module][:int(size)], int(count)) for _, module, size, count, _ in rows}
    words, learnt = spirv_pack.unpack(*packed.pop(spirv_pack.FIRST))
    found = {spirv_pack.FIRST: words}
    found.update((module, spirv_pack.unpack(*of, learnt)[0]) for module, of in packed.items())
    return {name: with_side(found[module], int(side)) for name, module, _, _, side in rows}


# ---- Vulkan, by ctypes: structs are packed as C aligns them

class Vulkan:
    def __init__(self):
        try:
            self.vk = ctypes.CDLL("libvulkan.so.1")
        except OSError:
            raise Absent("there is no Vulkan loader")
        self.kept = []
        info = self.struct("iPPIPII", 0, 0, 0, 0, 0, 0, 1 << 22 | 1 << 12)
        create = self.struct("iPIPIPIP", 1, 0, 0, info, 0, 0, 0, 0)
        self.instance = self.make("vkCreateInstance", None, create)
        count, devices = ctypes.c_uint32(1), (ctypes.c_void_p * 1)()
        self.vk.vkEnumeratePhysicalDevices(self.instance, ctypes.byref(count), devices)
        if not count.value:
            raise Absent("the driver shows no device")
        self.physical = ctypes.c_void_p(devices[0])
        properties = ctypes.create_string_buffer(4096)
        self.vk.vkGetPhysicalDeviceProperties(self.physical, properties)
        version = struct.unpack_from("I", properties, 4)[0]
        self.version = f"{version >> 22}.{version >> 12 & 1023}.{version & 4095}"

    def struct(self, layout, *values):
        data = ctypes.create_string_buffer(struct.pack("@" + layout + "0P", *values))
        self.kept.append(data)
        return ctypes.addressof(data)

    def call(self, name, *arguments):
        result = getattr(self.vk, name)(*arguments)
        if result < 0:
            raise Absent(f"{name} gave {result}")

    def make(self, name, device, info, *between):
        made = ctypes.c_void_p()
        before = [device] if device else []
        self.call(name, *before, *between, ctypes.c_void_p(info), None, ctypes.byref(made))
        return made

    def open(self):
        wanted = self.struct("iPI", 1000269000, 0, 1)
        name = ctypes.create_string_buffer(b"VK_KHR_pipeline_executable_properties")
        names = self.struct("P", ctypes.addressof(name))
        queue = self.struct("iPIIIP", 2, 0, 0, 0, 1, self.struct("f", 1.0))
        info = self.struct("iPIIPIPIPP", 3, wanted, 0, 1, queue, 0, 0, 1, names, 0)
        self.device = self.make("vkCreateDevice", self.physical, info)
        bindings = b"".join(struct.pack("@IIIIP", i, 6 if i == 4 else 7, 1, 32, 0) for i in range(5))
        kept = ctypes.create_string_buffer(bindings)
        info = self.struct("iPIIP", 32, 0, 0, 5, ctypes.addressof(kept))
        sets = self.make("vkCreateDescriptorSetLayout", self.device, info)
        info = self.struct("iPIIPIP", 30, 0, 0, 1, self.struct("P", sets.value), 1,
                           self.struct("III", 32, 0, 128))
        self.layout = self.make("vkCreatePipelineLayout", self.device, info)

    def pipeline(self, spirv, constants):
        code = ctypes.create_string_buffer(spirv, len(spirv))
        module = self.make("vkCreateShaderModule", self.device,
                           self.struct("iPINP", 16, 0, 0, len(spirv), ctypes.addressof(code)))
        entries = self.struct("IIN" * 5, *(v for i in range(5) for v in (i, 4 * i, 4)))
        special = self.struct("IPNP", 5, entries, 20, self.struct("5I", *constants))
        main = ctypes.create_string_buffer(b"main")
        stage = struct.pack("@iPIIPPP", 18, 0, 0, 32, module.value, ctypes.addressof(main), special)
        # The struct within begins at 24; its report of itself: statistics and the machine code.
        info = self.struct(f"iPI4x{len(stage)}sPPi", 29, 0, 0x40 | 0x80, stage, self.layout.value, 0, 0)
        made = ctypes.c_void_p()
        self.call("vkCreateComputePipelines", self.device, None, 1, ctypes.c_void_p(info), None,
                  ctypes.byref(made))
        return made

    def told(self, name, pipeline, kind, size, fill=None):
        """An array that a driver counts and fills, of structs of `size` bytes."""
        function = ctypes.cast(self.proc(self.device, name), ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p))
        info = self.struct("iPPI", 1000269003, 0, pipeline.value, 0)
        count, array = ctypes.c_uint32(32), ctypes.create_string_buffer(32 * size)
        for round_ in range(2 if fill else 1):
            for i in range(32):
                struct.pack_into("@i", array, i * size, kind)
                if round_:
                    fill(array, i * size)
            function(self.device, info, ctypes.byref(count), array)
        return [array.raw[i * size:(i + 1) * size] for i in range(count.value)]

    def proc(self, device, name):
        self.vk.vkGetDeviceProcAddr.restype = ctypes.c_void_p
        return self.vk.vkGetDeviceProcAddr(device, name.encode())

    def statistics(self, pipeline):
        rows = self.told("vkGetPipelineExecutableStatisticsKHR", pipeline, 1000269004, 544)
        return {row[16:272].split(b"\0")[0].decode(): struct.unpack_from("Q", row, 536)[0] for row in rows}

    def assembly(self, pipeline):
        texts = []

        def fill(array, at):
            size = struct.unpack_from("N", array, at + 536)[0]
            texts.append(ctypes.create_string_buffer(size + 1))
            struct.pack_into("@P", array, at + 544, ctypes.addressof(texts[-1]))
        rows = self.told("vkGetPipelineExecutableInternalRepresentationsKHR", pipeline, 1000269005, 552,
                         fill)
        found = [text.value.decode() for row, text in zip(rows, texts) if b"ssembly" in row[16:272]]
        if not found:
            raise Absent("the driver shows no machine code")
        return found[0]
