/* The two loops over records that Python is too slow for. `loops.py` loads them, and says what they promise.

   A stranger may have chosen every byte of `data`. So each position is compared with the size before anything is
   read there, and each value with the room that is left before it is copied. Nothing is allocated, kept or printed.

   Positions fit 64 bits: each is at most the size of the data and 2^32 more. */

#include <stdint.h>

enum { LENGTH_BYTES = 4 };

/* Walk over the entries of each chunk: a length of 32 bits, big-endian, and as many bytes. Copy these behind those
   of the chunk before: body k is at edges[k] to edges[k + 1] of `values`. A chunk is whole if its entries end at
   its stop. The bodies of another one are empty.

   The copy is made on the way, because memory is slower than either. `room` is less than 2^31. */
void offload_unpack(const uint8_t *data, int64_t size,
                    const int64_t *begins, const int64_t *stops, const int64_t *counts, int64_t chunks,
                    int32_t *edges, uint8_t *values, int64_t room, uint8_t *whole)
{
    int64_t filled = 0;
    *edges++ = 0;
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        int64_t at = begins[chunk], stop = stops[chunk] < 0 ? 0 : stops[chunk] < size ? stops[chunk] : size;
        int64_t begun = filled, entry = 0, count = counts[chunk];
        for (; entry < count && at >= 0 && at <= stop - LENGTH_BYTES; entry++) {
            const uint8_t *here = data + at;
            int64_t length = (int64_t)here[0] << 24 | here[1] << 16 | here[2] << 8 | here[3];
            at += LENGTH_BYTES;
            if (length > stop - at || length > room - filled)
                break;
            __builtin_memcpy(values + filled, data + at, (uint64_t)length);
            at += length;
            filled += length;
            edges[entry] = (int32_t)filled;
        }
        whole[chunk] = entry == count && at == stops[chunk];
        if (!whole[chunk]) {
            filled = begun;
            for (entry = 0; entry < count; entry++)
                edges[entry] = (int32_t)filled;
        }
        edges += count;
    }
}

/* Write rows that are made of pieces, each behind the one before it: row k from places[k] on. Piece p of row k has
   sizes[p][k] bytes of its source, from starts[p][k] on. Without such numbers it is the whole source, in each row.
   Return how many rows were written: not all if a piece is not within its source, or its place not within `out`. */
int64_t offload_join(const uint8_t *const *sources, const int64_t *source_sizes,
                     const int64_t *const *starts, const int64_t *const *sizes, int64_t pieces,
                     const int64_t *places, int64_t rows, uint8_t *out, int64_t room)
{
    for (int64_t row = 0; row < rows; row++) {
        int64_t place = places[row];
        for (int64_t piece = 0; piece < pieces; piece++) {
            int64_t start = starts[piece] ? starts[piece][row] : 0;
            int64_t size = sizes[piece] ? sizes[piece][row] : source_sizes[piece];
            if (size < 0 || place < 0 || size > room - place || start < 0 || start > source_sizes[piece] - size)
                return row;
            __builtin_memcpy(out + place, sources[piece] + start, (uint64_t)size);
            place += size;
        }
    }
    return rows;
}
