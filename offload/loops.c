/* The two loops over records that Python is too slow for. `loops.py` loads them, and says what they promise.

   A stranger may have chosen every byte of `data`. So each position is compared with the size before anything is
   read there, and each value with the room that is left before it is copied. Nothing is allocated, kept or printed.

   Positions fit 64 bits: each is at most the size of the data and 2^32 more. */

#include <stdint.h>

enum { LENGTH_BYTES = 4, LITERAL = 0, FIXED = 1, SIZED = 2 };

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

/* Find the rows that are made of some steps, and of nothing else, between their start and their stop. A step is
   widths[s] bytes of `literals`; any widths[s] bytes; or a size of so many bytes, big-endian, and as many bytes.
   The k-th row that is found is found[k], and its value v has sizes[k + v * rows] bytes at places[k + v * rows].
   Return how many were found. */
int64_t offload_match(const uint8_t *data, int64_t size, const int64_t *starts, const int64_t *stops, int64_t rows,
                      const int64_t *kinds, const int64_t *widths, int64_t steps, const uint8_t *literals,
                      int64_t *found, int64_t *places, int64_t *sizes)
{
    int64_t matched = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = starts[row], stop = stops[row], value = matched, step = 0;
        const uint8_t *literal = literals;
        if (at < 0 || at > stop || stop > size)
            continue;
        for (; step < steps && widths[step] <= stop - at; step++) {
            int64_t length = widths[step];
            if (kinds[step] == LITERAL) {
                if (__builtin_memcmp(data + at, literal, (uint64_t)length))
                    break;
                literal += length;
                at += length;
                continue;
            }
            if (kinds[step] == SIZED) {
                length = 0;
                for (int64_t byte = 0; byte < widths[step]; byte++)
                    length = length << 8 | data[at++];
            }
            places[value] = at;
            sizes[value] = length;
            value += rows;
            at += length;
        }
        if (step == steps && at == stop)
            found[matched++] = row;
    }
    return matched;
}

/* Write each value as a string of JSON, behind the one before it: between quotes, and a backslash before each quote
   and backslash. `edges` are as in offload_unpack. A value with a control character is odd[row], and what is written
   of it means nothing. `room` is the size of `out`. Return how many were written: not all if a value is not within
   `data`, or may not fit. */
int64_t offload_quote(const uint8_t *data, int64_t size, const int64_t *starts, const int64_t *sizes, int64_t rows,
                      int64_t *edges, uint8_t *out, int64_t room, uint8_t *odd)
{
    int64_t filled = 0;
    edges[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t start = starts[row], length = sizes[row];
        if (length < 0 || start < 0 || start > size - length || length > (room - filled) / 2 - 1)
            return row;
        uint8_t least = 0xFF;
        out[filled++] = '"';
        for (const uint8_t *from = data + start, *end = from + length; from < end; from++) {
            if (*from == '"' || *from == '\\')
                out[filled++] = '\\';
            out[filled++] = *from;
            least = *from < least ? *from : least;
        }
        out[filled++] = '"';
        odd[row] = least < ' ';
        edges[row + 1] = filled;
    }
    return rows;
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
