"""A GGUF file made by hand: just enough of the format to test the reader of headers."""

import struct

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pack(value):
    """Return the type and the bytes of a value, as converters write it."""
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return UINT32, struct.pack("<I", value)
    if isinstance(value, float):
        return FLOAT32, struct.pack("<f", value)
    if isinstance(value, str):
        return STRING, text(value)
    kind = pack(value[0])[0] if value else UINT32
    return ARRAY, struct.pack("<IQ", kind, len(value)) + b"".join(pack(item)[1] for item in value)


def gguf_bytes(metadata, *, version=3):
    """Return a GGUF file without tensors."""
    keys = b"".join(text(key) + struct.pack("<I", kind) + data for key, (kind, data) in _packed(metadata))
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(metadata)) + keys


def _packed(metadata):
    return [(key, pack(value)) for key, value in metadata.items()]
