/*
 * Marks regions, events and values of a program that runs under the profiler:
 *
 *     uint64_t fit = profiler_start("fit");
 *     ...
 *     profiler_end(fit);
 *
 * C99 and C++11 with GCC or Clang, on Linux; no library. All functions may be called from any
 * thread and after fork(2), and none waits: if the profiler cannot receive a mark, it is dropped,
 * and the next one reports it. Without a profiler, a call is a test of one variable.
 *
 * The grammar of marks, tables and limits: docs/regions.md
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef PROFILER_MARK_H
#define PROFILER_MARK_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Optional fields of a mark. Initialize with zeros; NULL and 0 are left out. */
struct profiler_details {
    uint64_t parent;       /* the enclosing region, from profiler_start */
    const char *group;     /* text */
    const char *kind;      /* text */
    const char *status;    /* of an end or a phase: "finished" (default), "error", or other text */
    const char *attrs;     /* JSON object, for example from struct profiler_attrs */
    const char *tags;      /* JSON list of words */
    const char *used;      /* JSON */
    const char *generated; /* JSON */
};

/* Whether a profiler receives marks. Skip costly preparation of attributes if not. */
static inline int profiler_enabled(void);

/* Starts a region. Returns its id for profiler_end and `parent`; 0 without a profiler. */
static inline uint64_t profiler_start(const char *name);
static inline uint64_t profiler_start_with(const char *name, const struct profiler_details *more);

/* Ends a region, in any thread. */
static inline void profiler_end(uint64_t region);
static inline void profiler_end_with(uint64_t region, const struct profiler_details *more);

/* A moment without duration. */
static inline void profiler_event(const char *name);
static inline void profiler_event_with(const char *name, const struct profiler_details *more);

/* A region that ends now and took this many seconds. */
static inline void profiler_phase(const char *name, double seconds);
static inline void profiler_phase_with(const char *name, double seconds,
                                       const struct profiler_details *more);

/* The current value of a quantity. `unit` may be NULL. Values that are not finite are ignored. */
static inline void profiler_gauge(const char *name, double value, const char *unit);

/*
 * Attributes as a JSON object, `text`. Initialize with PROFILER_ATTRS. Each function returns 0 if
 * the attribute does not fit and is left out.
 *
 *     struct profiler_attrs attrs = PROFILER_ATTRS;
 *     profiler_attr_int(&attrs, "epoch", 3);
 *     struct profiler_details more = {0};
 *     more.attrs = attrs.text;
 *     uint64_t fit = profiler_start_with("fit", &more);
 */
struct profiler_attrs {
    size_t length;
    char text[1024];
};
#define PROFILER_ATTRS {2, "{}"}

static inline int profiler_attr_int(struct profiler_attrs *attrs, const char *name, int64_t value);
static inline int profiler_attr_double(struct profiler_attrs *attrs, const char *name,
                                       double value);
static inline int profiler_attr_text(struct profiler_attrs *attrs, const char *name,
                                     const char *value);
/* `json` is any valid JSON. */
static inline int profiler_attr_json(struct profiler_attrs *attrs, const char *name,
                                     const char *json);

/* ---- Implementation: names that end with an underscore are private ---- */

/* The profiler ignores larger marks. */
#define PROFILER_MARK_BYTES_ 8192
/* Longer texts are cut, so that the texts of a mark always fit. */
#define PROFILER_TEXT_BYTES_ 255

enum { PROFILER_UNKNOWN_, PROFILER_ON_, PROFILER_OFF_ };

/*
 * One for each executable or shared library, so that libraries with different versions of this
 * file can be combined. All members are atomic.
 */
struct profiler_state_ {
    int enabled;      /* PROFILER_UNKNOWN_ until the first mark */
    uint32_t regions; /* number of regions that were started */
    uint64_t socket;  /* process that opened it, and its descriptor: 32 bits each */
    uint64_t dropped; /* process, and number of marks that it could not send: 32 bits each */
};
extern struct profiler_state_ profiler_state_;
__attribute__((weak, visibility("hidden"))) struct profiler_state_ profiler_state_;

static inline uint64_t profiler_own_(uint32_t value) {
    return (uint64_t)(uint32_t)getpid() << 32 | value;
}

/* A child of fork(2) opens a socket of its own: it may have closed those of its parent. */
static inline int profiler_socket_(void) {
    uint64_t seen = __atomic_load_n(&profiler_state_.socket, __ATOMIC_ACQUIRE);
    struct sockaddr_un to;
    const char *path;
    int fd;
    if (seen != 0 && seen == profiler_own_((uint32_t)seen)) return (int)(uint32_t)seen;
    memset(&to, 0, sizeof to);
    to.sun_family = AF_UNIX;
    path = getenv("PROFILER_SOCKET");
    if (!path || !*path || strlen(path) >= sizeof to.sun_path) return -1;
    memcpy(to.sun_path, path, strlen(path));
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return -1;
    }
    if (!__atomic_compare_exchange_n(&profiler_state_.socket, &seen, profiler_own_((uint32_t)fd),
                                     0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        close(fd); /* another thread was faster */
        return (int)(uint32_t)seen;
    }
    return fd;
}

static inline int profiler_find_(void) {
    int enabled = profiler_socket_() < 0 ? PROFILER_OFF_ : PROFILER_ON_;
    __atomic_store_n(&profiler_state_.enabled, enabled, __ATOMIC_RELAXED);
    return enabled == PROFILER_ON_;
}

static inline int profiler_enabled(void) {
    int enabled = __atomic_load_n(&profiler_state_.enabled, __ATOMIC_RELAXED);
    if (__builtin_expect(enabled == PROFILER_OFF_, 1)) return 0;
    return enabled == PROFILER_ON_ || profiler_find_();
}

/* JSON under construction. What does not fit sets `full`. */
struct profiler_json_ {
    char *text;
    size_t length, size;
    int full;
};

static inline void profiler_put_(struct profiler_json_ *json, const char *bytes, size_t length) {
    if (length > json->size - json->length) {
        json->full = 1;
        return;
    }
    memcpy(json->text + json->length, bytes, length);
    json->length += length;
}

static inline void profiler_put_number_(struct profiler_json_ *json, uint64_t number) {
    char digits[20];
    size_t first = sizeof digits;
    do digits[--first] = (char)('0' + number % 10);
    while (number /= 10);
    profiler_put_(json, digits + first, sizeof digits - first);
}

/* Length of the valid UTF-8 character at the start of a text of `left` bytes; 0 if invalid. */
static inline size_t profiler_character_(const unsigned char *text, size_t left) {
    unsigned lead = text[0], low = 0x80, high = 0xBF;
    size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3
                  : lead < 0xF5 ? 4 : 0;
    size_t i;
    if (length > left) return 0;
    if (lead == 0xE0) low = 0xA0;  /* overlong */
    if (lead == 0xED) high = 0x9F; /* surrogate */
    if (lead == 0xF0) low = 0x90;  /* overlong */
    if (lead == 0xF4) high = 0x8F; /* above U+10FFFF */
    for (i = 1; i < length; i++) {
        if (text[i] < low || text[i] > high) return 0;
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

/* A JSON string of at most `most` bytes of a text. Bytes that are not UTF-8 become '?'. */
static inline void profiler_put_text_(struct profiler_json_ *json, const char *text, size_t most) {
    static const char hex[] = "0123456789abcdef";
    size_t left = strlen(text);
    profiler_put_(json, "\"", 1);
    while (left > 0 && !json->full) {
        const unsigned char *at = (const unsigned char *)text;
        size_t valid = profiler_character_(at, left), length = valid ? valid : 1;
        if (length > most) break;
        if (!valid) {
            profiler_put_(json, "?", 1);
        } else if (*at == '"' || *at == '\\') {
            char escaped[2] = {'\\', *text};
            profiler_put_(json, escaped, sizeof escaped);
        } else if (*at < 0x20) {
            char escaped[6] = {'\\', 'u', '0', '0', hex[*at >> 4], hex[*at & 15]};
            profiler_put_(json, escaped, sizeof escaped);
        } else {
            profiler_put_(json, text, length);
        }
        text += length;
        left -= length;
        most -= length;
    }
    profiler_put_(json, "\"", 1);
}

/* Text of a finite number, whatever the decimal point of the locale; 0 if it is not finite. */
static inline size_t profiler_digits_(char digits[40], double value) {
    size_t from, length = 0;
    int count = snprintf(digits, 40, "%.17g", value);
    for (from = 0; from < (size_t)count; from++) {
        if (strchr("0123456789+-e", digits[from])) {
            digits[length++] = digits[from];
        } else if (strchr("naif", digits[from])) {
            return 0; /* nan, inf */
        } else if (length == 0 || digits[length - 1] != '.') {
            digits[length++] = '.';
        }
    }
    return length;
}

/* `,"name":JSON`, or nothing if it does not fit. */
static inline void profiler_put_member_(struct profiler_json_ *json, const char *name,
                                        const char *value) {
    size_t before = json->length;
    if (!value || !*value) return;
    profiler_put_(json, ",\"", 2);
    profiler_put_(json, name, strlen(name));
    profiler_put_(json, "\":", 2);
    profiler_put_(json, value, strlen(value));
    if (json->full) {
        json->length = before;
        json->full = 0;
    }
}

static inline void profiler_put_text_member_(struct profiler_json_ *json, const char *name,
                                             const char *value) {
    if (!value) return;
    profiler_put_(json, ",\"", 2);
    profiler_put_(json, name, strlen(name));
    profiler_put_(json, "\":", 2);
    profiler_put_text_(json, value, PROFILER_TEXT_BYTES_);
}

static inline void profiler_put_number_member_(struct profiler_json_ *json, const char *name,
                                               uint64_t number) {
    profiler_put_(json, ",\"", 2);
    profiler_put_(json, name, strlen(name));
    profiler_put_(json, "\":", 2);
    profiler_put_number_(json, number);
}

static inline void profiler_send_(const struct profiler_json_ *json, uint32_t reported) {
    int fd = profiler_socket_();
    uint64_t seen, more;
    if (fd >= 0 && send(fd, json->text, json->length, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return;
    if (fd < 0 || (errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM && errno != EINTR)) {
        /* The profiler has ended. */
        __atomic_store_n(&profiler_state_.enabled, PROFILER_OFF_, __ATOMIC_RELAXED);
        return;
    }
    seen = __atomic_load_n(&profiler_state_.dropped, __ATOMIC_RELAXED);
    do more = seen >> 32 == profiler_own_(0) >> 32 ? seen + reported + 1
                                                    : profiler_own_(reported + 1);
    while (!__atomic_compare_exchange_n(&profiler_state_.dropped, &seen, more, 1, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
}

/* Sends a mark. `number`: text of a number, the field `number_name`. */
static inline void profiler_mark_(const char *op, const char *name, uint64_t id,
                                  const char *number_name, const char *number, const char *unit,
                                  const struct profiler_details *more) {
    char text[PROFILER_MARK_BYTES_];
    struct profiler_json_ json = {text, 0, sizeof text - 1, 0};
    int saved = errno;
    uint64_t dropped = 0;
    profiler_put_(&json, "{\"op\":\"", 7);
    profiler_put_(&json, op, strlen(op));
    profiler_put_(&json, "\"", 1);
    profiler_put_text_member_(&json, "name", name);
    if (id) profiler_put_number_member_(&json, "id", id);
    profiler_put_member_(&json, number_name, number);
    profiler_put_text_member_(&json, "unit", unit);
    if (__atomic_load_n(&profiler_state_.dropped, __ATOMIC_RELAXED) != 0) {
        dropped = __atomic_exchange_n(&profiler_state_.dropped, 0, __ATOMIC_RELAXED);
        /* Those of the parent before fork(2) are reported by the parent. */
        dropped = dropped >> 32 == profiler_own_(0) >> 32 ? (uint32_t)dropped : 0;
        if (dropped) profiler_put_number_member_(&json, "dropped", dropped);
    }
    if (more) {
        if (more->parent) profiler_put_number_member_(&json, "parent", more->parent);
        profiler_put_text_member_(&json, "group", more->group);
        profiler_put_text_member_(&json, "kind", more->kind);
        profiler_put_text_member_(&json, "status", more->status);
        profiler_put_member_(&json, "attrs", more->attrs);
        profiler_put_member_(&json, "tags", more->tags);
        profiler_put_member_(&json, "used", more->used);
        profiler_put_member_(&json, "generated", more->generated);
    }
    json.size = sizeof text;
    profiler_put_(&json, "}", 1);
    profiler_send_(&json, (uint32_t)dropped);
    errno = saved;
}

static inline uint64_t profiler_start_with(const char *name, const struct profiler_details *more) {
    uint64_t id;
    if (!profiler_enabled()) return 0;
    /* The address tells regions of this library from those of others in the process. */
    id = (uint64_t)((uintptr_t)&profiler_state_ >> 4) << 32 |
         __atomic_add_fetch(&profiler_state_.regions, 1, __ATOMIC_RELAXED);
    profiler_mark_("start", name, id, NULL, NULL, NULL, more);
    return id;
}

static inline uint64_t profiler_start(const char *name) {
    return profiler_start_with(name, NULL);
}

static inline void profiler_end_with(uint64_t region, const struct profiler_details *more) {
    if (region && profiler_enabled()) {
        profiler_mark_("end", NULL, region, NULL, NULL, NULL, more);
    }
}

static inline void profiler_end(uint64_t region) {
    profiler_end_with(region, NULL);
}

static inline void profiler_event_with(const char *name, const struct profiler_details *more) {
    if (profiler_enabled()) profiler_mark_("event", name, 0, NULL, NULL, NULL, more);
}

static inline void profiler_event(const char *name) {
    profiler_event_with(name, NULL);
}

static inline void profiler_number_(const char *op, const char *name, const char *number_name,
                                    double number, const char *unit,
                                    const struct profiler_details *more) {
    char digits[41];
    size_t length = profiler_digits_(digits, number);
    digits[length] = 0;
    if (length) profiler_mark_(op, name, 0, number_name, digits, unit, more);
}

static inline void profiler_phase_with(const char *name, double seconds,
                                       const struct profiler_details *more) {
    if (profiler_enabled()) {
        profiler_number_("phase", name, "seconds", seconds > 0 ? seconds : 0, NULL, more);
    }
}

static inline void profiler_phase(const char *name, double seconds) {
    profiler_phase_with(name, seconds, NULL);
}

static inline void profiler_gauge(const char *name, double value, const char *unit) {
    if (profiler_enabled()) profiler_number_("gauge", name, "value", value, unit, NULL);
}

/* Adds a member with a value of this JSON, or with this text if `json` is NULL. */
static inline int profiler_attr_(struct profiler_attrs *attrs, const char *name, const char *value,
                                 const char *text) {
    /* Without its last bytes, "}" and zero. */
    size_t before = attrs->length - 1;
    struct profiler_json_ json = {attrs->text, before, sizeof attrs->text - 2, 0};
    if (before > 1) profiler_put_(&json, ",", 1);
    profiler_put_text_(&json, name, sizeof attrs->text);
    profiler_put_(&json, ":", 1);
    if (value) profiler_put_(&json, value, strlen(value));
    else profiler_put_text_(&json, text, sizeof attrs->text);
    if (json.full) json.length = before;
    memcpy(attrs->text + json.length, "}", 2);
    attrs->length = json.length + 1;
    return !json.full;
}

static inline int profiler_attr_int(struct profiler_attrs *attrs, const char *name,
                                    int64_t value) {
    char digits[24];
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    return profiler_attr_(attrs, name, digits, NULL);
}

static inline int profiler_attr_double(struct profiler_attrs *attrs, const char *name,
                                       double value) {
    char digits[41];
    size_t length = profiler_digits_(digits, value);
    digits[length] = 0;
    return profiler_attr_(attrs, name, length ? digits : "null", NULL);
}

static inline int profiler_attr_text(struct profiler_attrs *attrs, const char *name,
                                     const char *value) {
    return profiler_attr_(attrs, name, value ? NULL : "null", value);
}

static inline int profiler_attr_json(struct profiler_attrs *attrs, const char *name,
                                     const char *json) {
    return profiler_attr_(attrs, name, json, NULL);
}

#ifdef __cplusplus
} /* extern "C" */

/* A region that ends with its scope. */
class profiler_region {
  public:
    explicit profiler_region(const char *name, const profiler_details *more = nullptr)
        : id_(profiler_start_with(name, more)) {}
    ~profiler_region() { profiler_end(id_); }
    profiler_region(const profiler_region &) = delete;
    profiler_region &operator=(const profiler_region &) = delete;
    uint64_t id() const { return id_; }

  private:
    uint64_t id_;
};
#endif

#endif
