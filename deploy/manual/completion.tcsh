# Completion of @{program} for tcsh. Made from its option table when rdzv was built. Behind the command's name tcsh offers these options too: it cannot tell.
complete @{program} \
@{tcsh-options}
  'c@--@(@{tcsh-names})@'
