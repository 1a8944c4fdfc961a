"""The timeline of a run, `timeline/records.bin`: a preamble, then frames of the length and the checksum of
their payload, its kind, and the payload.

A record of an iteration begins with three numbers: its program, its epoch, and its own.
"""
import struct
import zlib

PREAMBLE_BYTES = 12
KIND_PROGRAM, KIND_ITERATION = 1, 2
HEAD = struct.Struct("<IIB")


def read_varint(data, at):
    """The LEB128 number at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def varint(value):
    """A number in LEB128."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def frames(data):
    """Kind and payload of the frames of a timeline."""
    at = PREAMBLE_BYTES
    while at + HEAD.size <= len(data):
        length, _, kind = HEAD.unpack_from(data, at)
        yield kind, data[at + HEAD.size : at + HEAD.size + length]
        at += HEAD.size + length


def frame(kind, payload):
    return HEAD.pack(len(payload), zlib.crc32(bytes([kind]) + payload), kind) + payload


class Records:
    """The records of a timeline, to be repeated in longer ones."""

    def __init__(self, data):
        self.preamble = data[:PREAMBLE_BYTES]
        self.programs, self.iterations = [], []
        for kind, payload in frames(data):
            if kind == KIND_PROGRAM:
                self.programs.append(payload)
            elif kind == KIND_ITERATION:
                program, at = read_varint(payload, 0)
                _, at = read_varint(payload, at)
                _, at = read_varint(payload, at)
                self.iterations.append((varint(program), payload[at:]))

    def write(self, path, iterations):
        """Writes a timeline; `iterations` yields epoch, iteration, and the position of the record that is
        repeated for it."""
        with path.open("wb") as out:
            out.write(self.preamble)
            for payload in self.programs:
                out.write(frame(KIND_PROGRAM, payload))
            for epoch, iteration, at in iterations:
                program, tail = self.iterations[at]
                out.write(frame(KIND_ITERATION, program + varint(epoch) + varint(iteration) + tail))
