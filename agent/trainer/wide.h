/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_WIDE_H
#define AGENT_TRAINER_WIDE_H

/* Functions that use the widest vectors of the CPU that runs them. A build for all CPUs of an architecture uses the
 * vectors that each of them has, which on x86-64 is a quarter of what most have.
 *
 *   WIDE_BODY double total_of(const float *p, size_t n) { ... }
 *   WIDE(double, total, (const float *p, size_t n), (p, n), total_of)
 *
 * defines total(), which is total_of compiled for AVX-512, for AVX2 or for all CPUs. A file that must have the same bits
 * on every CPU is compiled with -ffp-contract=off, because only some CPUs can contract a product and a sum. */

#define WIDE_BODY static inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__
#define WIDE_512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw"), min_vector_width(512)))
#else
#define WIDE_512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512")))
#endif
#define WIDE(type, name, parameters, arguments, body)                                                                  \
  WIDE_512 static type name##_512 parameters {                                                                         \
    return body arguments;                                                                                             \
  }                                                                                                                    \
  __attribute__((target("avx2"))) static type name##_256 parameters {                                                  \
    return body arguments;                                                                                             \
  }                                                                                                                    \
  type name parameters {                                                                                               \
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&                                     \
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))                                      \
      return name##_512 arguments;                                                                                     \
    if (__builtin_cpu_supports("avx2")) return name##_256 arguments;                                                   \
    return body arguments;                                                                                             \
  }
#else
#define WIDE(type, name, parameters, arguments, body)                                                                  \
  type name parameters {                                                                                               \
    return body arguments;                                                                                             \
  }
#endif

#endif
