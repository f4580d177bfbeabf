// Ends a loop of Gradio that keeps an idle page busy. Gradio's loading screen counts its seconds in every frame, and goes
// on when the page has replaced it: 60 frames a second, as long as the page is open. Nothing on this page shows seconds.
(() => {
  const request = window.requestAnimationFrame.bind(window);
  const counts = (callback) => /performance\.now\(\)\s*-[^;]*\/\s*1e3/.test(String(callback).slice(0, 200));
  // Gradio keeps this function when its script begins. Others get the browser's own again.
  window.requestAnimationFrame = (callback) => {
    if (!counts(callback)) return request(callback);
    window.requestAnimationFrame = request;
    return 0;
  };
})();
