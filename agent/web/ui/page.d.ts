// What the modules of the page take from Gradio and the server, for `tsc`. Elements and the details of events are not checked.
declare const gradio_config: { max_file_size?: number; components: { id: number; type: string; props: any }[] };
declare module "texts" {
  export const language: string, diagrams: Record<string, string>, links: boolean, space: string, later: string, python: string, rates: boolean, languages: any, said: any;
}
interface EventTarget {
  closest(selector: string): any;
  matches(selector: string): boolean;
}
interface Event {
  detail: any;
}
interface Element {
  [name: string]: any;
}
