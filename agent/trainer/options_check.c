/* The rules between options of training that a row of the table cannot say. An option that nobody would read is refused, so that a run
 * is what its command line says. */

#include "agent/trainer/run/options.h"

#include <errno.h>

static int check_hyper(const struct optim_hyper *h, struct err *e) {
  if (h->lr <= 0) return err_set(e, -EINVAL, "--lr 0: nothing would be learned");
  if (h->momentum > 0 && h->kind != COMPUTE_SGD)
    return err_set(e, -EINVAL, "--momentum is for --optimizer sgd; adam and adamw have --beta1");
  if (h->lr_min > 0 && h->decay == OPTIM_CONSTANT)
    return err_set(e, -EINVAL, "--lr-min needs --lr-decay linear, cosine or polynomial");
  if (h->lr_min > h->lr)
    return err_set(e, -EINVAL, "--lr-min %g is more than --lr %g, where the decay begins", h->lr_min, h->lr);
  if (h->decay != OPTIM_POLYNOMIAL && (h->lr_power < 1 || h->lr_power > 1))
    return err_set(e, -EINVAL, "--lr-power needs --lr-decay polynomial");
  return 0;
}

static int check_evaluation(const struct trainer_opts *o, struct err *e) {
  bool classify = o->loss == COMPUTE_CROSS_ENTROPY;
  if (!o->eval_data && o->eval_labels) return err_set(e, -EINVAL, "--eval-labels needs --eval-data WHAT");
  if (!o->eval_data && o->eval_every) return err_set(e, -EINVAL, "--eval-every needs --eval-data WHAT");
  if (o->eval_data && classify && !o->eval_labels)
    return err_set(e, -EINVAL, "--eval-data needs --eval-labels FILE where --loss is cross-entropy");
  if (o->eval_labels && !classify)
    return err_set(e, -EINVAL, "--eval-labels are for --loss cross-entropy; this run has %s",
                   trainer_loss_name(o->loss));
  return 0;
}

int trainer_opts_check(const struct trainer_opts *o, struct err *e) {
  const struct model_shape *s = &o->shape;
  uint32_t in = s->width[0], out = s->width[s->n - 1];
  bool classify = o->loss == COMPUTE_CROSS_ENTROPY;
  if (classify && !o->labels) return err_set(e, -EINVAL, "--loss cross-entropy needs --labels FILE");
  if (!classify && o->labels)
    return err_set(e, -EINVAL, "--labels are for --loss cross-entropy; this run has %s",
                   trainer_loss_name(o->loss));
  if (!classify && in != out)
    return err_set(e, -EINVAL,
                   "--loss %s trains an autoencoder: --layers must end as it begins, with %u, not %u",
                   trainer_loss_name(o->loss), in, out);
  if ((o->checkpoint_every.steps || o->checkpoint_every.ms) && !o->checkpoint_dir)
    return err_set(e, -EINVAL, "--checkpoint-every needs --checkpoint-dir DIR");
  int rc = check_evaluation(o, e);
  return rc ? rc : check_hyper(&o->hyper, e);
}
