"""CRC-32 as zlib computes it, without a library to link; call crc_init once.

16 bytes a step from tables of 16 KiB, or, from 64 bytes on and if the processor has it (checked at
run time), by carry-less multiplication: V. Gopal et al., "Fast CRC Computation for Generic
Polynomials Using PCLMULQDQ Instruction", Intel 2009.
"""

from libc.stdint cimport uint8_t, uint32_t

from motelog.core.records._layout cimport Record, body_crc_of

cdef extern from *:
    """
    #include <endian.h>
    #include <stdint.h>
    #include <string.h>

    static uint32_t crc_table[16][256];
    static int crc_multiplies;

    static inline uint32_t crc_word(uint64_t v, int k)
    {
        return crc_table[k + 7][v & 255] ^ crc_table[k + 6][v >> 8 & 255]
             ^ crc_table[k + 5][v >> 16 & 255] ^ crc_table[k + 4][v >> 24 & 255]
             ^ crc_table[k + 3][v >> 32 & 255] ^ crc_table[k + 2][v >> 40 & 255]
             ^ crc_table[k + 1][v >> 48 & 255] ^ crc_table[k][v >> 56];
    }

    static uint32_t crc_by_table(const uint8_t *p, size_t n, uint32_t c)
    {
        uint64_t a, b;
        for (; n >= 16; n -= 16, p += 16) {
            memcpy(&a, p, 8); memcpy(&b, p + 8, 8);
            a = le64toh(a) ^ c; b = le64toh(b);
            c = crc_word(a, 8) ^ crc_word(b, 0);
        }
        if (n >= 8) {
            memcpy(&a, p, 8);
            c = crc_word(le64toh(a) ^ c, 0);
            n -= 8; p += 8;
        }
        while (n--) c = crc_table[0][(c ^ *p++) & 255] ^ (c >> 8);
        return c;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define CRC_CAN_MULTIPLY 1

    /* One step: the content of x moves by the distance of k and meets data. */
    #define CRC_FOLD(x, k, data) \\
        _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), \\
                                    _mm_clmulepi64_si128(x, k, 0x11)), data)

    /* n is at least 64 and a multiple of 16. */
    __attribute__((target("pclmul,sse4.1")))
    static uint32_t crc_by_multiplying(const uint8_t *p, size_t n, uint32_t c)
    {
        const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
        const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        const __m128i to_64 = _mm_set_epi64x(0, 0x0163cd6124);
        const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        const __m128i low = _mm_setr_epi32(-1, 0, -1, 0);
        #define CRC_LOAD(i) _mm_loadu_si128((const __m128i *) (p + 16 * (i)))
        __m128i x0 = _mm_xor_si128(CRC_LOAD(0), _mm_cvtsi32_si128((int) c));
        __m128i x1 = CRC_LOAD(1), x2 = CRC_LOAD(2), x3 = CRC_LOAD(3), t;
        for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
            x0 = CRC_FOLD(x0, by_64, CRC_LOAD(0));
            x1 = CRC_FOLD(x1, by_64, CRC_LOAD(1));
            x2 = CRC_FOLD(x2, by_64, CRC_LOAD(2));
            x3 = CRC_FOLD(x3, by_64, CRC_LOAD(3));
        }
        x0 = CRC_FOLD(x0, by_16, x1);
        x0 = CRC_FOLD(x0, by_16, x2);
        x0 = CRC_FOLD(x0, by_16, x3);
        for (; n >= 16; p += 16, n -= 16) x0 = CRC_FOLD(x0, by_16, CRC_LOAD(0));
        #undef CRC_LOAD
        /* 128 bits to 64, to 32. */
        x0 = _mm_xor_si128(_mm_srli_si128(x0, 8), _mm_clmulepi64_si128(x0, by_16, 0x10));
        t = _mm_srli_si128(x0, 4);
        x0 = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(x0, low), to_64, 0x00), t);
        t = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(x0, low), barrett, 0x10), low);
        x0 = _mm_xor_si128(x0, _mm_clmulepi64_si128(t, barrett, 0x00));
        return (uint32_t) _mm_extract_epi32(x0, 1);
    }
    #endif

    static void crc_init(void)
    {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
            crc_table[0][i] = c;
        }
        for (int i = 0; i < 256; i++)
            for (int k = 1; k < 16; k++)
                crc_table[k][i] = crc_table[0][crc_table[k - 1][i] & 255] ^ (crc_table[k - 1][i] >> 8);
    #ifdef CRC_CAN_MULTIPLY
        __builtin_cpu_init();
        crc_multiplies = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    #endif
    }

    static uint32_t crc_bytes(const uint8_t *p, size_t n)
    {
        uint32_t c = 0xFFFFFFFFu;
    #ifdef CRC_CAN_MULTIPLY
        if (n >= 64 && crc_multiplies) {
            size_t whole = n & ~(size_t) 15;
            c = crc_by_multiplying(p, whole, c);
            p += whole;
            n -= whole;
        }
    #endif
        return crc_by_table(p, n, c) ^ 0xFFFFFFFFu;
    }
    """
    void crc_init() nogil
    uint32_t crc_bytes(const uint8_t *p, size_t n) nogil


cdef inline uint32_t crc31(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Return the CRC without its highest bit, as records hold it."""
    return crc_bytes(p, size) & 0x7FFFFFFF


cdef inline bint is_intact(const Record *r) noexcept nogil:
    """Return whether a record's body is the one with which it was written.

    Without a body the CRC is not checked: writers differ in the CRC of nothing.
    """
    return r.body_bytes == 0 or crc31(r.body, r.body_bytes) == body_crc_of(r)
