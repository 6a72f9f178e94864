/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-kubeflow in a build without libcurl: it refuses. */

#include <stdio.h>
#include "common/exit_codes.h"

int main(void) {
  return puts("this rdzv was built without libcurl, which reports to Kubeflow Trainer need") < 0 ? EXIT_CODE_SYSTEM
                                                                                                 : EXIT_CODE_USAGE;
}
