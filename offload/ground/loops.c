/* The loops over records that Python is too slow for. `loops.py` loads them, and says what they promise.

   A stranger may have chosen every byte of `data`. So each position is compared with the size before anything is
   read there, and each value with the room that is left before it is copied. Nothing is allocated, kept or printed.

   Positions fit 64 bits: each is at most the size of the data and 2^32 more. */

#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first of eight bytes is the lowest of a word");

enum { LENGTH_BYTES = 4, LITERAL = 0, FIXED = 1, SIZED = 2 };
enum { TEXT = 0, ASCII = 1, SIGNED = 2, UNSIGNED = 3, TIME = 4, UUID = 5, RAW = 6, NONE = 7 };
enum { STEP = 4, ESCAPE_ROOM = 6, UUID_BYTES = 16, WORD = 8 };

/* As memcmp and memcpy. Most literals and values are short, and a call takes longer than their bytes. */
static inline int is_same(const uint8_t *one, const uint8_t *other, int64_t size)
{
    uint64_t a, b;
    if (size < WORD) {
        for (; size > 0; size--)
            if (one[size - 1] != other[size - 1])
                return 0;
        return 1;
    }
    for (int64_t at = 0; ; at = at + 2 * WORD > size ? size - WORD : at + WORD) {
        __builtin_memcpy(&a, one + at, WORD);
        __builtin_memcpy(&b, other + at, WORD);
        if (a != b || at == size - WORD)
            return a == b;
    }
}

static inline void copy(uint8_t *to, const uint8_t *from, int64_t size)
{
    uint64_t first, last;
    if (size > 2 * WORD) {
        __builtin_memcpy(to, from, (uint64_t)size);
    } else if (size >= WORD) {
        __builtin_memcpy(&first, from, WORD);
        __builtin_memcpy(&last, from + size - WORD, WORD);
        __builtin_memcpy(to, &first, WORD);
        __builtin_memcpy(to + size - WORD, &last, WORD);
    } else {
        for (int64_t at = 0; at < size; at++)
            to[at] = from[at];
    }
}

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
                if (!is_same(data + at, literal, length))
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

/* Return a word whose lowest bit that is set is in the first of eight bytes that JSON escapes; 0 if there is none. A
   byte is less than another if their difference has its highest bit. A borrow from the byte below may set it as well,
   but that one is such a byte then, and lower. */
static inline uint64_t escapes_in(uint64_t word)
{
    const uint64_t ones = UINT64_MAX / 255, quotes = word ^ ones * '"', backslashes = word ^ ones * '\\';
    return ((word - ones * ' ') | (quotes - ones) | (backslashes - ones)) & ~word & ones * 0x80;
}

/* Write a text as JSON has it between quotes, and return where it ends. That takes ESCAPE_ROOM times its bytes at
   most. `beyond` is set if a byte is no ASCII. */
static uint8_t *escape(uint8_t *out, const uint8_t *from, const uint8_t *end, uint8_t *beyond)
{
    static const char names[' '] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    static const char digits[] = "0123456789abcdef";
    uint64_t word, seen = 0;
    while (from < end) {
        if (end - from >= WORD) {
            __builtin_memcpy(&word, from, WORD);
            __builtin_memcpy(out, &word, WORD);
            seen |= word;
            uint64_t found = escapes_in(word);
            int plain = found ? __builtin_ctzll(found) / 8 : WORD;
            from += plain;
            out += plain;
            if (!found)
                continue;
        }
        uint8_t byte = *from++;
        seen |= byte;
        if (byte == '"' || byte == '\\' || byte < ' ')
            *out++ = '\\';
        if (byte >= ' ') {
            *out++ = byte;
        } else if (names[byte]) {
            *out++ = (uint8_t)names[byte];
        } else {
            __builtin_memcpy(out, "u00", 3);
            out[3] = (uint8_t)digits[byte >> 4];
            out[4] = (uint8_t)digits[byte & 15];
            out += 5;
        }
    }
    *beyond |= (seen & UINT64_MAX / 255 * 0x80) != 0;
    return out;
}

/* Write a number with so many digits, or with as many as it has if that is 0. Return where it ends. */
static uint8_t *decimal(uint8_t *out, uint64_t number, int width)
{
    uint64_t rest = number;
    if (width == 0)
        do
            width++;
        while (rest /= 10);
    for (int digit = width - 1; digit >= 0; digit--, number /= 10)
        out[digit] = (uint8_t)('0' + number % 10);
    return out + width;
}

/* Write a time as ISO 8601 in UTC, and return where it ends; NULL if it is not in the years 1 to 9999. */
static uint8_t *instant(uint8_t *out, int64_t ms)
{
    const int64_t day_ms = 86400000, first_ms = -719162 * day_ms, end_ms = 2932897 * day_ms;
    if (ms < first_ms || ms >= end_ms)
        return 0;
    uint64_t of_day = (uint64_t)(ms - first_ms) % day_ms;
    /* Years that begin in March end with their leap day, so do spans of 4, 100 and 400 of them. */
    uint64_t day = (uint64_t)(ms - first_ms) / day_ms + 306, year = day / 146097 * 400;
    day %= 146097;
    uint64_t centuries = day / 36524 > 3 ? 3 : day / 36524;
    day -= centuries * 36524;
    year += centuries * 100 + day / 1461 * 4;
    day %= 1461;
    uint64_t years = day / 365 > 3 ? 3 : day / 365;
    day -= years * 365;
    /* From March on, each five months have 153 days. */
    uint64_t month = (5 * day + 2) / 153;
    year += years + (month >= 10);
    out = decimal(out, year, 4);
    *out++ = '-';
    out = decimal(out, month >= 10 ? month - 9 : month + 3, 2);
    *out++ = '-';
    out = decimal(out, day - (153 * month + 2) / 5 + 1, 2);
    *out++ = 'T';
    out = decimal(out, of_day / 3600000, 2);
    *out++ = ':';
    out = decimal(out, of_day / 60000 % 60, 2);
    *out++ = ':';
    out = decimal(out, of_day / 1000 % 60, 2);
    *out++ = '.';
    out = decimal(out, of_day % 1000, 3);
    *out++ = 'Z';
    return out;
}

/* Write a value in this form, and return where it ends; NULL if it has no such text. An integer takes at most 20 bytes,
   a time 24, a UUID 36, and a text ESCAPE_ROOM for each of its bytes. */
static uint8_t *transcribed(uint8_t *out, int64_t form, const uint8_t *from, int64_t size, uint8_t *beyond)
{
    static const char digits[] = "0123456789abcdef";
    if (form == NONE)
        return out;
    if (form == RAW) {
        copy(out, from, size);
        return out + size;
    }
    if (form == TEXT)
        return escape(out, from, from + size, beyond);
    if (form == ASCII) {
        uint8_t is_beyond = 0;
        out = escape(out, from, from + size, &is_beyond);
        return is_beyond ? 0 : out;
    }
    if (form == UUID) {
        for (int64_t byte = 0; byte < UUID_BYTES; byte++) {
            if (byte == 4 || byte == 6 || byte == 8 || byte == 10)
                *out++ = '-';
            *out++ = (uint8_t)digits[from[byte] >> 4];
            *out++ = (uint8_t)digits[from[byte] & 15];
        }
        return out;
    }
    uint64_t number = form != UNSIGNED && from[0] >> 7 ? UINT64_MAX : 0;
    for (int64_t byte = 0; byte < size; byte++)
        number = number << 8 | from[byte];
    if (form == TIME)
        return instant(out, (int64_t)number);
    if (form == SIGNED && number >> 63) {
        *out++ = '-';
        number = -number;
    }
    return decimal(out, number, 0);
}

/* Find rows as offload_match does, and write each that is found, behind the one before it: row k is at edges[k] to
   edges[k + 1] of `out`. First, `first` bytes of `texts`; then, for each value, its text, and so many further bytes
   of `texts`. A step is four numbers: its kind; its width; the form of the value, and the bytes behind it.

   A number has 1 to 8 bytes, a UUID has 16. TEXT and ASCII are written as JSON has them between quotes, RAW as it
   is, and NONE not at all, so it counts as no value. A row is not found if a value has no text in its form.
   beyond[k] says that a TEXT has bytes that are no ASCII: whether they are UTF-8 is not known. The text of value v
   of row k is sizes[k + v * rows] bytes, at places[k + v * rows] of `out`; for TEXT and ASCII, of `data`. A row takes
   at most `fixed` bytes, and `growth` for each of its own: ESCAPE_ROOM if there are TEXT or ASCII, else 1. Return how
   many were found, or -1 if a row might not fit into `room`. */
int64_t offload_transcribe(const uint8_t *data, int64_t size, const int64_t *starts, const int64_t *stops, int64_t rows,
                           const int64_t *steps, int64_t count, const uint8_t *literals,
                           const uint8_t *texts, int64_t first, int64_t fixed, int64_t growth,
                           int64_t *found, int64_t *places, int64_t *sizes,
                           int64_t *edges, uint8_t *out, int64_t room, uint8_t *beyond)
{
    int64_t matched = 0, filled = 0;
    edges[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = starts[row], stop = stops[row], value = matched, step = 0;
        const uint8_t *literal = literals, *text = texts;
        if (at < 0 || at > stop || stop > size)
            continue;
        if ((stop - at) * growth > room - filled - fixed)
            return -1;
        uint8_t *end = out + filled;
        copy(end, text, first);
        end += first;
        text += first;
        beyond[matched] = 0;
        for (; step < count; step++) {
            const int64_t *of = steps + step * STEP;
            int64_t kind = of[0], length = of[1], form = of[2], behind = of[3];
            if (length > stop - at)
                break;
            if (kind == LITERAL) {
                if (!is_same(data + at, literal, length))
                    break;
                literal += length;
                at += length;
                continue;
            }
            if (kind == SIZED) {
                int64_t width = length;
                length = 0;
                for (; width > 0; width--)
                    length = length << 8 | data[at++];
                if (length > stop - at)
                    break;
            }
            uint8_t *begun = end;
            end = transcribed(end, form, data + at, length, beyond + matched);
            if (!end)
                break;
            if (form != NONE) {
                places[value] = form <= ASCII ? at : begun - out;
                sizes[value] = form <= ASCII ? length : end - begun;
                value += rows;
            }
            at += length;
            copy(end, text, behind);
            end += behind;
            text += behind;
        }
        if (step < count || at != stop)
            continue;
        found[matched++] = row;
        filled = end - out;
        edges[matched] = filled;
    }
    return matched;
}

/* Say whether bytes are UTF-8, as Unicode 15.0 has it in table 3-7: no surrogate, nothing above U+10FFFF, and no
   character in more bytes than it needs. */
static int is_utf8(const uint8_t *at, const uint8_t *end)
{
    uint64_t word;
    while (at < end) {
        if (end - at >= WORD) {
            __builtin_memcpy(&word, at, WORD);
            if (!(word & UINT64_MAX / 255 * 0x80)) {
                at += WORD;
                continue;
            }
        }
        uint8_t lead = *at++;
        if (lead < 0x80)
            continue;
        int more = lead < 0xC2 ? 4 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : lead < 0xF5 ? 3 : 4;
        if (more > end - at)
            return 0;
        uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (more == 4 || *at < least || *at > most)
            return 0;
        for (at++; --more; at++)
            if ((*at & 0xC0) != 0x80)
                return 0;
    }
    return 1;
}

/* Write each value as a string of JSON, behind the one before it. `edges` are as in offload_unpack. `room` is the size
   of `out`. A value that is no UTF-8 has broken[row], and nothing is written for it. Return how many were written: not all if a value is not within
   `data`, or may not fit. */
int64_t offload_quote_utf8(const uint8_t *data, int64_t size, const int64_t *starts, const int64_t *sizes, int64_t rows,
                      int64_t *edges, uint8_t *out, int64_t room, uint8_t *broken)
{
    uint8_t *end = out, beyond = 0;
    edges[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t start = starts[row], length = sizes[row];
        if (length < 0 || start < 0 || start > size - length || length * ESCAPE_ROOM > out + room - end - 2)
            return row;
        broken[row] = !is_utf8(data + start, data + start + length);
        if (!broken[row]) {
            *end++ = '"';
            end = escape(end, data + start, data + start + length, &beyond);
            *end++ = '"';
        }
        edges[row + 1] = end - out;
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
            copy(out + place, sources[piece] + start, size);
            place += size;
        }
    }
    return rows;
}
