// Attaches files to the composer, and uploads one without attaching it.
({ $, box, root }) => {
  // Attaches files as if they had been picked, with the same checks. Returns false if the composer cannot take any now.
  const attach = (files) => {
    const input = $("#composer input[type=file]");
    if (!input || !files.length) return false;
    const list = new DataTransfer();
    for (const file of files) list.items.add(file);
    input.files = list.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
    box()?.focus();
    return true;
  };
  // Returns an uploaded file in the form of the composer's files.
  const fileOf = ({ path, name, media_type, size = null }) => {
    const url = new URL(`${root}/gradio_api/file=${path.split("/").map(encodeURIComponent).join("/")}`, location).href;
    return { path, url, orig_name: name, size, mime_type: media_type, is_stream: false, meta: { _type: "gradio.FileData" } };
  };
  // Uploads a file, and returns it in that form.
  const upload = async (file) => {
    const body = new FormData();
    body.append("files", file);
    const id = Math.random().toString(36).slice(2);
    const answer = await fetch(`${root}/gradio_api/upload?upload_id=${id}`, { method: "POST", body, credentials: "include" });
    if (!answer.ok) throw new Error(answer.statusText);
    const [path] = await answer.json();
    return fileOf({ path, name: file.name, media_type: file.type, size: file.size });
  };
  return { attach, upload, fileOf };
}
