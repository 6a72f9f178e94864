# SPDX-License-Identifier: Apache-2.0
from rdzv.run import main

main()
