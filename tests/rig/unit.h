#ifndef TESTS_UNIT_UNIT_H
#define TESTS_UNIT_UNIT_H

/* What cmocka wants to be included before it, in its order. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#endif
