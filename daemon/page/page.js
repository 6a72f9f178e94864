// SPDX-License-Identifier: Apache-2.0

/* Reads the jobs twice a second. */
let tag = '';
async function look() {
  const answer = await fetch('/status', { cache: 'no-store', headers: tag ? { 'If-None-Match': tag } : {} });
  if (answer.status !== 200) return;
  tag = answer.headers.get('ETag') || '';
  const list = (await answer.json()).jobs.map((job) => {
    const line = document.createElement('p');
    line.textContent = `${job.job}: ${job.state}, round ${job.round}, ${job.nodes} nodes`;
    return line;
  });
  document.getElementById('jobs').replaceChildren(...list);
}
look();
setInterval(look, 500);
