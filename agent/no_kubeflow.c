/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-kubeflow in a build without libcurl: it refuses. */

#include <stdio.h>
#include "common/exit_codes.h"

int main(void) {
  return puts("this rdzv was built without libcurl: install a build that has it, such as the Debian package") < 0
             ? EXIT_CODE_SYSTEM
             : EXIT_CODE_USAGE;
}
