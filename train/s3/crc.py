"""CRC-32, by which transfers are verified: by Intel's ISA-L, which is three times as fast as zlib.

Where there is no wheel of it, zlib gives the same number.
"""

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
