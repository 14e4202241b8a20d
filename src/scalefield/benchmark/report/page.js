for (const choice of document.querySelectorAll('.choice')) {
  const buttons = choice.querySelectorAll('button'), panels = choice.querySelectorAll('.panel');
  buttons.forEach((button, i) => button.onclick = () => {
    buttons.forEach((b, j) => b.setAttribute('aria-pressed', i === j));
    panels.forEach((p, j) => p.hidden = i !== j);
  });
}
for (const table of document.querySelectorAll('table')) {
  const body = table.tBodies[0], heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
  const key = (row, i) => {
    const cell = row.cells[i];
    return i === 0 ? cell.textContent : cell.dataset.v === undefined ? NaN : +cell.dataset.v;
  };
  [...heads].forEach((head, i) => head.onclick = () => {
    const down = head.getAttribute('aria-sort') === 'ascending';
    [...heads].forEach(h => h.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const rows = [...body.rows].map(row => [key(row, i), row]);
    rows.sort(([a], [b]) => {
      if (typeof a === 'string') return (down ? -1 : 1) * a.localeCompare(b);
      if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);
      return (down ? -1 : 1) * (a - b);
    });
    body.append(...rows.map(([, row]) => row));
  });
}
