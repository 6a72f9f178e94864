/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rdzvd.h"

int main(int argc, char **argv) {
  return rdzvd_main(argc, argv);
}
