/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_UNIT_H
#define TESTS_RIG_UNIT_H

/* The headers that must precede cmocka's, in its order. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#endif
